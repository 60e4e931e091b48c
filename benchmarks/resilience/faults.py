"""Faults: what breaks while the bystanders send their requests."""

import signal
import time
from contextlib import suppress
from copy import deepcopy

import psutil

from benchmarks.resilience.culprits import HANG, POISON
from benchmarks.resilience.load import request_bytes
from benchmarks.resilience.run import Run
from benchmarks.resilience.service import Document, emulated_document
from benchmarks.resilience.strangers import exchange
from deployments.errors import StartError


def kill(processes: list[psutil.Process]) -> None:
    """Kill processes; at least one must exist, or nothing would be tested."""
    if not processes:
        raise SystemExit("the process to kill was not found")
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def one_replica(run: Run) -> None:
    """Kill a replica every ten seconds."""
    run.begin()
    for _ in range(2 if run.quick else 6):
        kill(run.service.replicas()[:1])
        time.sleep(10)
    run.service.wait_for_replicas(2)


def all_replicas(run: Run) -> None:
    """Kill all replicas at once."""
    run.begin()
    kill(run.service.replicas())
    run.service.wait_for_replicas(2)
    time.sleep(8)


def haproxy(run: Run) -> None:
    run.begin()
    kill(run.service.haproxies())
    time.sleep(10)


def haproxy_supervisor(run: Run) -> None:
    """Kill the supervisor of HAProxy, and when Ray has started another one, a replica."""
    before = run.service.haproxies()
    run.begin()
    kill(run.service.supervisors())
    until_s = time.monotonic() + 30
    while any(map(runs, before)) and time.monotonic() < until_s:
        time.sleep(0.2)
    if any(map(runs, before)):
        run.notes.append("Ray has not started another supervisor within 30 s")
    else:
        run.notes.append(f"replaced after {time.monotonic() - run.fault_s:.0f} s")
    kill(run.service.replicas()[:1])
    time.sleep(10)
    run.service.wait_for_replicas(2)


def replica_stopped(run: Run) -> None:
    """Stop one of two replicas (SIGSTOP) for 15 s; for 8 s in a quick run."""
    replica = run.service.replicas()[0]
    run.begin()
    replica.send_signal(signal.SIGSTOP)
    time.sleep(8 if run.quick else 15)
    # It may have been killed meanwhile.
    with suppress(psutil.NoSuchProcess):
        replica.send_signal(signal.SIGCONT)
    time.sleep(8)
    run.service.wait_for_replicas(2)


def controller(run: Run) -> None:
    """Kill Serve's controller."""
    run.begin()
    kill(run.service.processes(lambda _, command: command.startswith("ray::ServeController")))
    time.sleep(12 if run.quick else 20)


def gcs(run: Run) -> None:
    """Kill the GCS, Ray's directory of the cluster."""
    run.begin()
    kill(run.service.processes(lambda name, _: name == "gcs_server"))
    time.sleep(20 if run.quick else 30)


def upgrade(run: Run) -> None:
    """Replace all replicas by a new version."""
    before = {process.pid for process in run.service.replicas()}
    run.begin()
    document = deepcopy(run.service.document)
    document["applications"][0]["args"]["model"]["version"] = "2"
    run.service.deploy(document)
    until_s = time.monotonic() + 60
    while before & {one.pid for one in run.service.replicas()} and time.monotonic() < until_s:
        time.sleep(0.5)
    run.service.wait_for_replicas(2)


def broken_upgrade(run: Run) -> None:
    """Deploy a version that cannot start, then the old one again."""
    run.begin()
    document = deepcopy(run.service.document)
    document["applications"][0]["args"]["model"]["import_path"] = "deployments.models.none:None"
    # The controller may reject it, or find out when the replicas start.
    with suppress(StartError):
        run.service.deploy(document)
    time.sleep(15)
    run.service.deploy(run.service.document)
    time.sleep(5)
    run.service.wait_for_replicas(2)


def hanging_device(run: Run) -> None:
    """Send one request on which the device hangs."""
    run.begin()
    status = _culprit(run, HANG, within_s=25)
    run.notes.append(f"the culprit was answered {status}")
    run.service.wait_for_replicas(2)


def poison(run: Run) -> None:
    """Send one request that kills the process that computes it."""
    before = {process.pid for process in run.service.replicas()}
    run.begin()
    status = _culprit(run, POISON, within_s=15)
    dead = len(before - {process.pid for process in run.service.replicas()})
    run.notes.append(f"the culprit was answered {status}; it killed {dead} of the first replicas")
    run.service.wait_for_replicas(2)
    time.sleep(5)


def culprit_document() -> Document:
    """Return the config of a service whose device can fail."""
    return emulated_document(import_path="benchmarks.resilience.culprits:Culprits")


def _culprit(run: Run, value: float, within_s: float) -> str:
    """Send a request of one value; return the status of its answer after `within_s`."""
    target = run.service.target
    begun_s = time.monotonic()
    answer = exchange(target, request_bytes(target, value), timeout_s=within_s)
    time.sleep(max(0.0, within_s - (time.monotonic() - begun_s)))
    return answer.split(b" ", 2)[1].decode() if answer else "nothing"
