"""The experiments: what breaks, on which service, and the run of one."""

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.resilience import faults, strangers
from benchmarks.resilience.load import Bystanders, Load
from benchmarks.resilience.run import BEFORE_S, Fault, Run
from benchmarks.resilience.service import Document, Service, emulated_document
from benchmarks.resilience.tally import tally


@dataclass(frozen=True)
class Experiment:
    """One row of the table.

    Attributes
    ----------
    fault : callable
        Does the harm that its docstring describes.
    document : callable
        Makes the config of the service.
    fatal : bool
        Whether the service is of no use afterwards.
    """

    name: str
    fault: Fault
    document: Callable[[], Document] = emulated_document
    fatal: bool = False


EXPERIMENTS = (
    Experiment("haproxy-killed", faults.haproxy),
    Experiment("supervisor-killed", faults.haproxy_supervisor),
    Experiment("replica-stopped", faults.replica_stopped),
    Experiment("replica-killed", faults.one_replica),
    Experiment("all-replicas-killed", faults.all_replicas),
    Experiment("controller-killed", faults.controller),
    Experiment("upgrade", faults.upgrade),
    Experiment("broken-upgrade", faults.broken_upgrade),
    Experiment("slow-headers", strangers.slow_headers),
    Experiment("slow-bodies", strangers.slow_bodies),
    Experiment("idle-connections", strangers.idle_connections),
    Experiment("churn", strangers.churn),
    Experiment("garbage", strangers.garbage),
    Experiment("overload", strangers.overload),
    Experiment("device-hangs", faults.hanging_device, document=faults.culprit_document),
    Experiment("poison", faults.poison, document=faults.culprit_document),
    Experiment("gcs-killed", faults.gcs, fatal=True),
)


def run_experiment(experiment: Experiment, service: Service, quick: bool) -> dict[str, Any]:
    """Send load, do the harm, and return the row of the table.

    Returns
    -------
    dict
        The fields of a `Tally`, ``experiment``, ``fault``, ``notes``, and the number of processes
        that waited for a CPU of this machine (``machine_load``).
    """
    target = service.target
    bystanders = Bystanders(target, Load())
    run = Run(service, quick)
    machine_load = os.getloadavg()[0]
    bystanders.start()
    try:
        time.sleep(BEFORE_S)
        run.begin()
        experiment.fault(run)
    finally:
        bystanders.end()
    counts = tally(
        bystanders.requests, bystanders.doubled, run.fault_s, target.sla_s, target.percentile
    )
    return {
        "experiment": experiment.name,
        **asdict(counts),
        "machine_load": round(max(machine_load, os.getloadavg()[0]), 1),
        "notes": run.notes,
    }
