"""A pipeline without Ray, behind the HTTP protocol of a replica."""

import asyncio
import signal
import socket
from pathlib import Path

import httpx
import pytest
import yaml

from deployments.errors import StartError
from deployments.http.protocol import InferenceProtocol
from deployments.pipelines.serving.config import load_pipeline_file
from deployments.pipelines.serving.server import serve_pipeline
from tests.support.pipelines import configs as pipeline_configs
from tests.support.ports import free_port
from tests.support.waiting import LIMIT_S


async def test_a_pipeline_has_the_fast_path_and_the_limits_of_models(tmp_path: Path) -> None:
    """A header value of 24 MB took 3 s of CPU."""
    document = pipeline_configs.config()
    document["http_options"]["port"] = free_port()
    path = tmp_path / "pipeline.yaml"
    path.write_text(yaml.safe_dump(document))
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve_pipeline(load_pipeline_file(path), ready.set_result))
    await asyncio.wait((ready, serving), return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        await serving  # it did not start, and says why
    async with httpx.AsyncClient(base_url=await ready, timeout=LIMIT_S) as client:
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}
        answer = await client.post("/v2/models/twice/infer", json={"inputs": [tensor]})
        assert answer.json()["outputs"][0]["data"] == [4, 8, 12]
        assert InferenceProtocol.hosted is not None
        answer = await client.get("/v2", headers={"x": "a" * (1 << 20)})
        assert answer.status_code == 431
    signal.raise_signal(signal.SIGTERM)
    await serving
    assert InferenceProtocol.hosted is None


async def test_a_port_that_is_in_use_is_named_before_a_worker_starts(tmp_path: Path) -> None:
    document = pipeline_configs.config()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = document["http_options"]["port"] = taken.getsockname()[1]
        path = tmp_path / "pipeline.yaml"
        path.write_text(yaml.safe_dump(document))
        with pytest.raises(StartError, match=f"port {port} of 127.0.0.1: Address already in use"):
            await serve_pipeline(load_pipeline_file(path), print)
