"""The service under test: `sojourn serve` with its processes, which the experiments harm."""

import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import psutil

from benchmarks.local_service import (
    emulated_p4_document,
    running_replicas,
    running_service,
)
from benchmarks.resilience.load import Target
from deployments.errors import StartError
from deployments.local.descendants import adopted_orphans, descendants, end_descendants
from deployments.local.serve_api import ServeApi

PORT = 8131
READY_TIMEOUT_S = 90.0
Document = dict[str, Any]


def emulated_document(replicas: int = 2, **model: Any) -> Document:
    """Return the config of the emulated GPU with a fixed number of replicas.

    Parameters
    ----------
    **model
        Changes to the model's section.
    """
    document = emulated_p4_document()
    (application,) = document["applications"]
    application["args"]["model"].update(model)
    (deployment,) = application["deployments"]
    del deployment["autoscaling_config"]
    deployment["num_replicas"] = replicas
    # The bystanders' large bodies are mostly blanks.
    deployment["user_config"]["limits"] = {"max_body_bytes": 4 << 20}
    return document


@dataclass(frozen=True)
class Service:
    """A running service.

    Attributes
    ----------
    document : dict
        The config that was deployed at the start.
    """

    target: Target
    dashboard: str
    process: psutil.Process
    document: Document

    def processes(self, is_it: Callable[[str, str], bool]) -> list[psutil.Process]:
        """Return the processes whose name and command line `is_it` accepts."""
        found = []
        for process in self.process.children(recursive=True):
            with suppress(psutil.Error):
                if is_it(process.name(), " ".join(process.cmdline())):
                    found.append(process)
        return found

    def replicas(self) -> list[psutil.Process]:
        """Return the replicas, by process id."""
        return self.processes(lambda _, command: command.startswith("ray::ServeReplica"))

    def haproxies(self) -> list[psutil.Process]:
        return self.processes(lambda _, command: "/haproxy -db -f" in command.partition(" -sf")[0])

    def supervisors(self) -> list[psutil.Process]:
        """Return the processes that supervise HAProxy."""
        found = self.processes(lambda _, command: "sojourn-haproxy" in command)
        pids = {process.pid for process in found}
        return [process for process in found if process.ppid() not in pids]

    def solvers(self) -> list[psutil.Process]:
        """Return the processes that solve policy tables."""
        return self.processes(lambda _, command: "autoscaler.worker" in command)

    def memory_mib(self) -> dict[str, float]:
        """Return the memory of the processes that last, by role and process id."""
        roles = {"replica": self.replicas(), "HAProxy": self.haproxies()}
        found = {}
        for role, processes in (*roles.items(), ("sojourn serve", [self.process])):
            for process in processes:
                with suppress(psutil.Error):
                    found[f"{role} {process.pid}"] = process.memory_full_info().pss / 2**20
        return found

    def deploy(self, document: Document) -> None:
        """Deploy a config, as ``serve deploy`` does; raise `StartError` if it is rejected."""
        ServeApi(self.dashboard).deploy(document)

    def wait_for_replicas(self, count: int, timeout_s: float = READY_TIMEOUT_S) -> bool:
        """Wait until exactly `count` replicas run and the service answers."""
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s:
            with suppress(StartError, ValueError, KeyError):
                if len(running_replicas(self.dashboard)) == count and self.answers():
                    return True
            time.sleep(0.2)
        return False

    def wait_for_tables(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until no process solves policy tables, which takes a whole core.

        One that has solved waits for the next request, idle.
        """
        until_s, before_s = time.monotonic() + timeout_s, -1.0
        while time.monotonic() < until_s:
            with suppress(psutil.NoSuchProcess):
                used_s = sum(sum(one.cpu_times()[:2]) for one in self.solvers())
                if used_s == before_s:
                    return
                before_s = used_s
            time.sleep(0.5)

    def answers(self) -> bool:
        """Return whether the model is ready, as the service says."""
        target = self.target
        url = f"http://{target.host}:{target.port}/v2/models/{target.model}/ready"
        with suppress(OSError), urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
        return False


@contextmanager
def serving(document: Document) -> Iterator[Service]:
    """Serve a config while the context lasts, until its replicas run and have their tables.

    All processes that the context started have ended by its end.
    """
    (application,) = document["applications"]
    (deployment,) = application["deployments"]
    sla, name = deployment["user_config"]["sla"], application["args"]["model"]["name"]
    target = Target("127.0.0.1", PORT, name, 1e-3 * sla["response_time_ms"], sla["percentile"])
    before = descendants()
    with adopted_orphans():
        try:
            with running_service(document, PORT) as local:
                service = Service(target, local.dashboard, local.process, deepcopy(document))
                if not service.wait_for_replicas(deployment["num_replicas"]):
                    raise SystemExit("the replicas did not start")
                service.wait_for_tables()
                yield service
        finally:
            left = end_descendants(but=before)
            if left:
                raise SystemExit(f"processes could not be ended: {left}")
