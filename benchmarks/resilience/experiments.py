"""The experiments: what breaks, on which service, and the run of one."""

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.resilience import faults, nodes, strangers
from benchmarks.resilience.fuzz import fuzz
from benchmarks.resilience.load import Load
from benchmarks.resilience.run import BEFORE_S, Fault, Run
from benchmarks.resilience.service import Document, Service, emulated_document, serving
from benchmarks.resilience.tally import tally

BYSTANDERS = Load()


@dataclass(frozen=True)
class Experiment:
    """One row of the table.

    Attributes
    ----------
    name : str
    fault : callable
        Does the harm; its docstring says what it is.
    document : callable
        Makes the config of the service.
    fatal : bool
        Whether the service is of no use afterwards.
    start : callable
        Serves the config where the fault can be done, while a context lasts.
    load : Load
        What the bystanders send.
    """

    name: str
    fault: Fault
    document: Callable[[], Document] = emulated_document
    fatal: bool = False
    start: Callable[[Document], AbstractContextManager[Service]] = serving
    load: Load = BYSTANDERS

    @property
    def kind(self) -> tuple[object, object]:
        """What experiments on the same service have in common."""
        return self.document, self.start


EXPERIMENTS = (
    Experiment("haproxy-killed", faults.haproxy),
    Experiment("supervisor-killed", faults.haproxy_supervisor),
    Experiment("replica-stopped", faults.replica_stopped),
    Experiment("replica-killed", faults.one_replica),
    Experiment("all-replicas-killed", faults.all_replicas),
    Experiment("controller-killed", faults.controller),
    Experiment("scaling", faults.scaling),
    Experiment("upgrade", faults.upgrade),
    Experiment("broken-upgrade", faults.broken_upgrade),
    Experiment("bad-config", faults.bad_config),
    Experiment("slow-headers", strangers.slow_headers),
    Experiment("slow-bodies", strangers.slow_bodies),
    Experiment("idle-connections", strangers.idle_connections),
    Experiment("bombs", strangers.bombs),
    Experiment("churn", strangers.churn),
    Experiment("garbage", strangers.garbage),
    Experiment("pipelining", strangers.pipelining),
    Experiment("smuggling", strangers.smuggling),
    Experiment("fuzz", fuzz),
    Experiment("overload", strangers.overload),
    Experiment("device-hangs", faults.hanging_device, document=faults.culprit_document),
    Experiment("poison", faults.poison, document=faults.culprit_document),
    Experiment("node-drained", nodes.drained, nodes.document, True, nodes.serving, nodes.LOAD),
    Experiment("node-killed", nodes.killed, nodes.document, True, nodes.serving, nodes.LOAD),
    Experiment("node-vanished", nodes.vanished, nodes.document, True, nodes.serving, nodes.LOAD),
    Experiment("gcs-killed", faults.gcs, fatal=True),
)


def run_experiment(experiment: Experiment, service: Service, quick: bool) -> list[dict[str, Any]]:
    """Send load, do the harm, and return the rows of the table: one for each group of clients.

    Parameters
    ----------
    experiment : Experiment
    service : Service
        With its replicas running.
    quick : bool

    Returns
    -------
    list of dict
        The fields of a `Tally`, ``experiment``, ``fault``, ``notes``, and the number of processes
        that waited for a CPU of this machine (``machine_load``).
    """
    target = service.target
    groups = service.bystanders(experiment.load)
    run = Run(service, quick)
    machine_load = os.getloadavg()[0]
    for bystanders in groups.values():
        bystanders.start()
    try:
        time.sleep(BEFORE_S)
        run.begin()
        experiment.fault(run)
    finally:
        for bystanders in groups.values():
            bystanders.end()
    machine_load = round(max(machine_load, os.getloadavg()[0]), 1)
    return [
        {
            "experiment": f"{experiment.name}, {clients}" if clients else experiment.name,
            "fault": (experiment.fault.__doc__ or "").strip(),
            **asdict(
                tally(
                    *(bystanders.requests, bystanders.doubled),
                    *(run.fault_s, target.sla_s, target.percentile),
                )
            ),
            "machine_load": machine_load,
            "notes": [] if clients else run.notes,
        }
        for clients, bystanders in groups.items()
    ]
