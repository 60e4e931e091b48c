"""An open-loop run at a given rate: what clients that do not wait for the server see."""

from dataclasses import dataclass

import numpy as np

from benchmarks.peers.goodput import settle
from benchmarks.peers.light_loop import light_open_loop
from benchmarks.peers.machine import machine_use
from benchmarks.peers.overload import REFUSALS
from benchmarks.peers.protocols import Workload
from benchmarks.peers.servers import PORT
from loadtests.records import Outcome
from loadtests.schedule import Step, poisson_schedule


@dataclass(frozen=True)
class OfferedLoad:
    """The result of one run; shares are of the requests offered.

    Attributes
    ----------
    arrival_rate_per_s : float
        Poisson arrivals offered.
    p50_ms, p99_ms : float
        Percentiles of the response time of right answers, from when each was due until the kernel
        had it.
    in_time_share : float
        Fraction answered rightly within the SLA.
    refused_share : float
        Fraction refused or given up.
    wrong : int
        Wrong answers.
    others_cores : float
        Cores that other processes kept busy meanwhile.
    cpu_us : mapping of str to float
        CPU time of the server per request offered, by part (`machine.MachineUse.server_cpu_us`).
    """

    arrival_rate_per_s: float
    p50_ms: float
    p99_ms: float
    in_time_share: float
    refused_share: float
    wrong: int
    others_cores: float
    cpu_us: dict[str, float]


def offer(
    workload: Workload,
    rate_per_s: float,
    run_s: float,
    response_time_ms: float,
    server_pid: int,
    seed: int = 1,
) -> OfferedLoad:
    """Offer Poisson arrivals at `rate_per_s` to the running server for `run_s` seconds.

    Parameters
    ----------
    workload : Workload
    rate_per_s : float
    run_s : float
    response_time_ms : float
        Response time of the SLA.
    server_pid : int
        The server's first process.
    seed : int
        Of the arrivals.
    """
    settle(workload, response_time_ms)
    arrivals_s = poisson_schedule([Step(run_s, rate_per_s)], seed=seed).arrivals_s
    with machine_use(server_pid) as used:
        run = light_open_loop(workload, arrivals_s, PORT)
    response_ms = 1e3 * (run.received_s - run.due_s)[run.answered]
    p50_ms, p99_ms = (
        np.percentile(response_ms, (50, 99)).tolist() if response_ms.size else (np.nan, np.nan)
    )
    return OfferedLoad(
        arrival_rate_per_s=rate_per_s,
        p50_ms=p50_ms,
        p99_ms=p99_ms,
        in_time_share=float(run.in_time(response_time_ms).mean()),
        refused_share=float(np.isin(run.outcome, REFUSALS).mean()),
        wrong=int((run.outcome == Outcome.WRONG).sum()),
        others_cores=used.others_cores,
        cpu_us=used.server_cpu_us(arrivals_s.size),
    )
