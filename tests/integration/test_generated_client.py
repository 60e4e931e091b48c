"""A client that is generated from the OpenAPI document infers."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from deployments.http.app import InferenceApp
from tests.support.models.doubles_service import listening, make_service

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        "SOJOURN_TEST_GENERATED_CLIENT" not in os.environ,
        reason="it installs a generator for a minute; set SOJOURN_TEST_GENERATED_CLIENT",
    ),
]

#: It pins other versions of our own dependencies, so it gets an environment of its own.
GENERATOR = "openapi-python-client==0.29.1"
USE = """
import sys
from client import Client
from client.api.default import infer, model, server
from client.models import InferRequest

service = Client(base_url=sys.argv[1])
assert server.sync(client=service).name == "sojourn"
assert model.sync(client=service).inputs[0].shape == [-1, 2]
tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
request = InferRequest.from_dict({"inputs": [tensor], "parameters": {"timeout": 9_000_000}})
print(infer.sync(client=service, body=request).outputs[0].data)
request.inputs[0].shape = [1, 3]
print(infer.sync(client=service, body=request).error)
"""


async def run(*command: str | Path, cwd: Path) -> str:
    """Return what a command writes; it must succeed."""
    result = await asyncio.to_thread(
        subprocess.run, command, cwd=cwd, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return str(result.stdout)


async def test_a_generated_client_infers(tmp_path: Path) -> None:
    await run(sys.executable, "-m", "venv", "generator", cwd=tmp_path)
    programs = tmp_path / "generator" / "bin"
    await run(programs / "pip", "install", "--quiet", GENERATOR, cwd=tmp_path)
    async with make_service() as service, listening(InferenceApp(service, "1")) as (_, port):
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient() as client:
            document = (await client.get(f"{url}/sojourn/openapi.json")).json()
        (tmp_path / "openapi.json").write_text(json.dumps(document))
        generate = [
            "generate",
            "--path",
            "openapi.json",
            "--meta",
            "none",
            "--output-path",
            "client",
        ]
        said = await run(programs / "openapi-python-client", *generate, cwd=tmp_path)
        assert "parsing" not in said, "it left a path out"
        told = await run(programs / "python", "-c", USE, url, cwd=tmp_path)
    data, error = told.splitlines()
    assert data == "[2.0, 4.0]"
    assert "input 'x': shape must be [-1, 2]" in error
