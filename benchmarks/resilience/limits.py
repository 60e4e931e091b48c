"""Limits that a service meets: memory, disk, the clock, and requests longer than a scale-in."""

import os
import resource
import threading
import time
from collections import Counter
from contextlib import suppress
from copy import deepcopy
from pathlib import Path

import psutil

from benchmarks.resilience.culprits import SLOW, SLOW_S
from benchmarks.resilience.load import request_bytes
from benchmarks.resilience.run import Run
from benchmarks.resilience.settings import CLOCK, DISK, set_clock
from benchmarks.resilience.strangers import exchange

#: Memory that a replica may still ask for: less than a large body and its tensors.
_LEFT_BYTES = 1 << 20


def memory_limit(run: Run) -> None:
    """Let one of two replicas have no more memory, for 15 s."""
    replica = run.service.replicas()[0]
    before = resource.prlimit(replica.pid, resource.RLIMIT_AS)
    run.begin()
    limit = replica.memory_info().vms + _LEFT_BYTES
    resource.prlimit(replica.pid, resource.RLIMIT_AS, (limit, before[1]))
    time.sleep(15)
    with suppress(ProcessLookupError):
        resource.prlimit(replica.pid, resource.RLIMIT_AS, before)
    lived = replica.is_running() and replica.status() != psutil.STATUS_ZOMBIE
    run.notes.append(f"the replica {'lived on' if lived else 'died'}")
    run.service.wait_for_replicas(2)
    time.sleep(5)


def disk_full(run: Run) -> None:
    """Fill the disk of Ray's logs and of the cache, change the SLA, and kill a replica."""
    disk = Path(run.service.environment[DISK])
    filler = disk / "filler"
    run.begin()
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 20))
    document = deepcopy(run.service.document)
    deployment = document["applications"][0]["deployments"][0]
    deployment["user_config"]["sla"]["percentile"] = 98.5
    run.service.deploy(document)
    time.sleep(8)
    run.service.replicas()[0].kill()
    began = run.service.wait_for_replicas(2, 30)
    run.notes.append("another replica started" if began else "no other replica started")
    filler.unlink()
    run.service.wait_for_replicas(2)
    time.sleep(5)
    free = os.statvfs(disk)
    run.notes.append(f"{free.f_bavail * free.f_frsize >> 20} MiB are free again")


def clock_stepped(run: Run) -> None:
    """Set the clock that Python reads forward by an hour, and back after 10 s; kill a replica."""
    clock = Path(run.service.environment[CLOCK])
    run.begin()
    for offset_s in (3600, 0):
        set_clock(clock, offset_s)
        time.sleep(10)
    run.service.replicas()[0].kill()
    time.sleep(5)
    run.service.wait_for_replicas(2)
    time.sleep(5)


def long_requests(run: Run) -> None:
    """Go from three replicas to one while each of them computes a request of 20 s."""
    document = deepcopy(run.service.document)
    (deployment,) = document["applications"][0]["deployments"]
    deployment["num_replicas"] = 3
    run.service.deploy(document)
    run.service.wait_for_replicas(3)
    statuses: list[str] = []

    def ask() -> None:
        request = request_bytes(run.service.target, SLOW)
        answer = exchange(run.service.target, request, SLOW_S + 25)
        statuses.append(answer.split(b" ", 2)[1].decode() if answer else "nothing")

    clients = [threading.Thread(target=ask) for _ in range(3)]
    for client in clients:
        client.start()
        time.sleep(0.5)
    run.begin()
    deployment["num_replicas"] = 1
    run.service.deploy(document)
    for client in clients:
        client.join()
    counts = ", ".join(f"{number} × {status}" for status, number in Counter(statuses).items())
    run.notes.append(f"requests of {SLOW_S:g} s were answered {counts}")
    run.service.deploy(run.service.document)
    run.service.wait_for_replicas(2)
