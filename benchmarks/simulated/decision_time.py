"""Measure how long the autoscaler keeps Serve's controller, saving its state included.

    python -m benchmarks.simulated.decision_time [--quick] [--json]

A deployment with two days of history gets a report of each replica every second, and decides twice
a second, as in Serve's controller. One call is timed from the floats of the reports to the recorded
decision. The state is packed and kept by a thread, in memory instead of in Ray's store. Besides the
time that passes, the processor time of the deciding thread is given, which other processes on the
machine hardly change.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import click
import numpy as np

from autoscaler.decision import FleetState
from autoscaler.ray.store import PACK_AFTER_S
from autoscaler.reports import ReplicaReport, curve_to_floats
from autoscaler.scaled_deployments import ScaledDeployment
from autoscaler.settings import AutoscalerSettings
from benchmarks.arguments import json_option, quick_option
from benchmarks.inputs import GOOGLENET_P4
from policy.load_lateness import solve_load_lateness_curve
from policy.objective import ServiceLevelObjective
from sojourn.output import print_json, print_table

HISTORY_S = 2 * 86_400
START_S = 1_700_000_000.0
SLA = ServiceLevelObjective(50.0, 99.0)
#: Share of its SLA rate at which each replica runs.
LOAD = 0.7


class MemoryStore:
    """A store that packs in a thread, as the one in Ray does, and keeps what it gets in memory."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._kept: dict[str, bytes] = {}

    def load(self, key: str) -> "Future[bytes | None]":
        """Read what was saved under `key`."""
        return self._thread.submit(self._kept.get, key)

    def save(self, key: str, content: Callable[[], bytes]) -> "Future[None]":
        """Save what `content` returns under `key`."""
        return self._thread.submit(self._pack, key, content)

    def _pack(self, key: str, content: Callable[[], bytes]) -> None:
        time.sleep(PACK_AFTER_S)
        self._kept[key] = content()

    def wait(self) -> None:
        """Wait for the thread to finish."""
        self._thread.submit(lambda: None).result()

    def delete(self, key: str) -> None:
        """Delete what was saved under `key`."""
        self._kept.pop(key, None)


def decision_times_ms(replicas: int, seconds: int) -> np.ndarray:
    """Return what each decision takes, after two days of history.

    Returns
    -------
    ndarray of float, shape (decisions, 2)
        Time that passed, and processor time of the thread, in ms.
    """
    curve = solve_load_lateness_curve(GOOGLENET_P4, SLA, 32)
    assert curve is not None
    rate_per_s = LOAD * replicas * curve.sla_rate_per_s
    random = np.random.default_rng(0)
    times_s = np.arange(HISTORY_S)
    history = random.poisson(rate_per_s * (1 - 0.3 * np.cos(times_s / 13_750.0)))
    store = MemoryStore()
    deployment = ScaledDeployment("app", "model", store)
    forecaster = deployment.autoscaler._replicas._monitor._forecaster
    forecaster.observe(START_S, history)
    constant = {
        "refused_total": 0.0,
        "queue_length": 3.0,
        "full_batch_size": float(GOOGLENET_P4.max_batch_size),
        "full_batch_ms": float(GOOGLENET_P4.latency_ms[-1]),
        "sla_response_time_ms": SLA.response_time_ms,
        "sla_percentile": SLA.percentile,
        "start_time_s": 60.0,
        "late_total": 0.0,
        **curve_to_floats(curve),
        **AutoscalerSettings().to_floats(),
    }
    totals = np.zeros(replicas)
    taken_ms = []
    for tick in range(2 * seconds):
        now_s = START_S + 1 + tick / 2
        if tick % 2 == 0:
            totals += random.poisson(rate_per_s / replicas, replicas)
            recorded_s, counted_s = now_s - 0.3, 1.0 + tick / 2
            rows = [
                {
                    **constant,
                    "offered_total": total,
                    "completed_total": total,
                    "answered_total": total,
                    "counted_s": counted_s,
                }
                for total in totals.tolist()
            ]
        begun_s = np.array([time.perf_counter(), time.thread_time()])
        if tick % 2 == 0:
            reports = [
                ReplicaReport.from_floats(f"replica-{number}", recorded_s, values)
                for number, values in enumerate(rows)
            ]
        decision = deployment.decide(
            now_s,
            reports,
            FleetState(replicas, 1, 10 * replicas, replicas),
        )
        deployment.record(now_s, replicas, decision)
        ended_s = np.array([time.perf_counter(), time.thread_time()])
        taken_ms.append(1e3 * (ended_s - begun_s))
        # Half a second passes between two decisions, in which the thread is done.
        store.wait()
    return np.array(taken_ms[20:])


def _summary(taken_ms: np.ndarray, prefix: str) -> dict[str, float]:
    return {
        f"{prefix}mean_ms": float(taken_ms.mean()),
        f"{prefix}p99_ms": float(np.percentile(taken_ms, 99)),
        f"{prefix}max_ms": float(taken_ms.max()),
    }


@click.command()
@quick_option("Ten minutes instead of an hour of decisions.")
@json_option
def main(quick: bool, as_json: bool) -> None:
    """Measure how long a decision of the autoscaler takes."""
    fleets = {
        str(replicas): decision_times_ms(replicas, 600 if quick else 3600)
        for replicas in ((40,) if quick else (40, 200))
    }
    summaries = {
        replicas: {
            "decisions": taken_ms.shape[0],
            **_summary(taken_ms[:, 0], ""),
            **_summary(taken_ms[:, 1], "cpu_"),
        }
        for replicas, taken_ms in fleets.items()
    }
    if as_json:
        print_json(summaries)
        return
    times = ["mean ms", "p99 ms", "longest ms"]
    headings = ["replicas", "decisions", *times, *(f"CPU {name}" for name in times)]
    print_table(headings, [(name, *summary.values()) for name, summary in summaries.items()])


if __name__ == "__main__":
    main()
