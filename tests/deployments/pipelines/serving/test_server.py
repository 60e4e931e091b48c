"""A pipeline without Ray, behind the HTTP protocol of a replica."""

import asyncio
import signal
from pathlib import Path

import httpx
import yaml

from deployments.http.protocol import InferenceProtocol
from deployments.pipelines.serving.config import load_pipeline_file
from deployments.pipelines.serving.server import serve_pipeline
from tests.support.pipelines import configs as pipeline_configs
from tests.support.ports import free_port


async def test_a_pipeline_has_the_fast_path_and_the_limits_of_models(tmp_path: Path) -> None:
    """A header value of 24 MB took 3 s of CPU."""
    document = pipeline_configs.config()
    document["http_options"]["port"] = free_port()
    path = tmp_path / "pipeline.yaml"
    path.write_text(yaml.safe_dump(document))
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve_pipeline(load_pipeline_file(path), ready.set_result))
    async with httpx.AsyncClient(base_url=await ready, timeout=60) as client:
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}
        answer = await client.post("/v2/models/twice/infer", json={"inputs": [tensor]})
        assert answer.json()["outputs"][0]["data"] == [4, 8, 12]
        assert InferenceProtocol.hosted is not None
        answer = await client.get("/v2", headers={"x": "a" * (1 << 20)})
        assert answer.status_code == 431
    signal.raise_signal(signal.SIGTERM)
    await serving
    assert InferenceProtocol.hosted is None
