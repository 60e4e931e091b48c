"""A service on two nodes, both on this machine, of which one is drained or dies.

Each node has a raylet, HAProxy and replicas of its own (`benchmarks.resilience.two_nodes`); clients
ask the HAProxy of the head.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks.inputs import ROOT
from benchmarks.live.local_service import get_json
from benchmarks.resilience.faults import kill
from benchmarks.resilience.run import Run
from benchmarks.resilience.service import Document, Service, emulated_document, ready_service
from deployments.config import load_service_configs
from deployments.local.environment import environment_of
from deployments.local.ray_token import ray_headers
from deployments.local.run import run_of

#: How long before its end Ray is told that a node will go.
_NOTICE_S = 30


def document() -> Document:
    """Return the config of a service of which each node has room for both replicas."""
    content = emulated_document()
    content["applications"][0]["deployments"][0]["ray_actor_options"]["num_cpus"] = 0.5
    return content


@contextmanager
def serving_on_two(document: Document) -> Iterator[Service]:
    """Serve a config on two nodes while the context lasts."""
    with tempfile.TemporaryDirectory(prefix="sj", dir="/tmp") as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(yaml.safe_dump(document))
        environment = environment_of(run_of(load_service_configs(config)), Path(folder), "random")
        with (
            (Path(folder) / "log").open("w") as log,
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.resilience.two_nodes"],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            ) as process,
        ):
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(document) + "\n")
            process.stdin.flush()
            dashboard = process.stdout.readline().strip()
            if not dashboard:
                raise SystemExit(f"two nodes did not start: {(Path(folder) / 'log').read_text()}")
            try:
                yield ready_service(document, dashboard, psutil.Process(process.pid))
            finally:
                process.stdin.close()
                process.wait(60)


def drained(run: Run) -> None:
    """Tell Ray that the second node will go, and kill it after the notice of 30 s."""
    raylet = _second_raylet(run.service)
    (gcs,) = (word for word in raylet.cmdline() if word.startswith("--gcs-address="))
    details = get_json(f"{run.service.dashboard}/api/serve/applications/", ray_headers())
    head = details["controller_info"]["node_id"]
    (node,) = (one for one in details["proxies"] if one != head)
    run.notes.append(f"replicas before: {_by_node(details, head)}")
    command = [str(Path(sys.executable).with_name("ray")), "drain-node", "--node-id", node]
    command += ["--address", gcs.partition("=")[2], "--reason-message", "an experiment"]
    command += ["--reason", "DRAIN_NODE_REASON_PREEMPTION"]
    command += ["--deadline-remaining-seconds", str(_NOTICE_S)]
    run.begin()
    told = subprocess.run(
        command, env=run.service.process.environ(), capture_output=True, text=True, timeout=30
    )
    if told.returncode:
        raise SystemExit(f"the node was not drained: {told.stderr[-500:]}")
    time.sleep(_NOTICE_S)
    details = get_json(f"{run.service.dashboard}/api/serve/applications/", ray_headers())
    run.notes.append(f"replicas before its end: {_by_node(details, head)}")
    kill([raylet, *raylet.children(recursive=True)])
    time.sleep(10)


def killed(run: Run) -> None:
    """Kill all processes of the second node at once."""
    raylet = _second_raylet(run.service)
    run.begin()
    kill([raylet, *raylet.children(recursive=True)])
    time.sleep(20)
    run.service.wait_for_replicas(2)


def _second_raylet(service: Service) -> psutil.Process:
    """Return the raylet of the node that is not the head."""
    raylets = service.named("raylet")
    (second,) = (one for one in raylets if "--head" not in one.cmdline())
    return second


def _by_node(details: dict[str, Any], head: str) -> str:
    (application,) = details["applications"].values()
    (deployment,) = application["deployments"].values()
    nodes = [one["node_id"] for one in deployment["replicas"] if one["state"] == "RUNNING"]
    on_head = nodes.count(head)
    return f"{on_head} on the head, {len(nodes) - on_head} on the second node"
