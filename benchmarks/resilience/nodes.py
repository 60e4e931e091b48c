"""Several nodes: raylets of one cluster, on this machine."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy

import psutil

from benchmarks.resilience.faults import kill
from benchmarks.resilience.run import Run
from benchmarks.resilience.service import Document, Service, emulated_document
from deployments.local.machine import LOOPBACK

_START_TIMEOUT_S = 60.0


def spread_document() -> Document:
    """Return the config of a service that has one replica per node, and one for now."""
    document = emulated_document(replicas=1)
    (deployment,) = document["applications"][0]["deployments"]
    deployment["max_replicas_per_node"] = 1
    return document


@contextmanager
def another_raylet(service: Service) -> Iterator[psutil.Process]:
    """Run a second raylet in the service's cluster; yield the process that started it."""
    (gcs,), (raylet,) = service.named("gcs_server"), service.named("raylet")
    flag = "--gcs_server_port="
    (port,) = (word.removeprefix(flag) for word in gcs.cmdline() if word.startswith(flag))
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1"]
    command += [f"--address={LOOPBACK}:{port}", f"--node-ip-address={LOOPBACK}"]
    process = subprocess.Popen(
        command, env=raylet.environ(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    node = psutil.Process(process.pid)
    started: set[psutil.Process] = set()
    try:
        yield node
    finally:
        with suppress(psutil.NoSuchProcess):
            started.update(node.children(recursive=True))
        for one in (node, *started):
            with suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait()


def raylet_killed(run: Run) -> None:
    """Kill the raylet of a second node, which has one of two replicas."""
    before = {one.pid for one in run.service.replicas()}
    with another_raylet(run.service) as node:
        document = deepcopy(run.service.document)
        document["applications"][0]["deployments"][0]["num_replicas"] = 2
        run.service.deploy(document)
        if not run.service.wait_for_replicas(2, _START_TIMEOUT_S):
            raise SystemExit("the second node did not get a replica")
        time.sleep(3)
        children = node.children(recursive=True)
        run.begin()
        kill([one for one in children if one.name() == "raylet"])
        _, alive = psutil.wait_procs(children, timeout=12)
        for one in alive:
            run.notes.append(f"12 s later {one.name()} of the second node is still there")
            one.kill()
    kept = before & {one.pid for one in run.service.replicas()}
    run.notes.append(f"{len(kept)} of the {len(before)} replicas on the first node served on")
