"""A pipeline without Ray, behind the HTTP protocol of a replica."""

import socket

import pytest
import yaml

from deployments.errors import StartError
from deployments.pipelines.serving.config import load_pipeline_file
from deployments.pipelines.serving.server import serve_pipeline
from tests.support.pipelines.configs import config


async def test_a_port_that_is_in_use_is_named_before_a_worker_starts(tmp_path):
    document = config()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = document["http_options"]["port"] = taken.getsockname()[1]
        path = tmp_path / "pipeline.yaml"
        path.write_text(yaml.safe_dump(document))
        with pytest.raises(StartError, match=f"port {port} of 127.0.0.1: Address already in use"):
            await serve_pipeline(load_pipeline_file(path), print)
