"""Measure the CPU time of one decision of the autoscaler, as Serve's controller makes it.

    python -m benchmarks.simulated.decision_time [--quick] [--json]

Ray's policy object decides once a second of virtual time, on the metrics of 40 and of 10,000
replicas, for a service whose load is known for two days. The time is that of the thread that calls
it: margins are measured once a minute in it, forecasts chosen every ten minutes, and the state
copied every ten seconds. The store is in memory; the metrics are exported as without a cluster.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import click
import numpy as np
from ray.serve._private.common import DeploymentID, ReplicaID, TimeStampedValue
from ray.serve.config import AutoscalingContext

from autoscaler.forecasting.load_history import LoadHistory
from autoscaler.ray_adapter import SojournAutoscalingPolicy
from autoscaler.reports import curve_to_floats
from autoscaler.scaled_deployments import scaled_deployment
from autoscaler.settings import AutoscalerSettings
from autoscaler.simulator.scenario import Scenario
from benchmarks.arguments import json_option, print_result, quick_option
from benchmarks.simulated.traces import DAY_S, PROFILE, SLA

REPLICAS = (40, 10_000)
SECONDS, QUICK_SECONDS = 1_200, 120
APP = "decision_time"
#: The load, as a share of what the replicas take within the SLA.
UTILIZATION = 0.7


class _Memory:
    """A store that forgets what is saved; packing is the work of another thread."""

    def load(self, key: str) -> Future[bytes | None]:
        return _done(None)

    def save(self, key: str, content: Callable[[], bytes]) -> Future[None]:
        return _done(None)

    def delete(self, key: str) -> None: ...


def _done(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future


def decision_times_ms(replicas: int, seconds: int) -> np.ndarray:
    """Return the CPU time of each decision, in ms, shape (seconds,)."""
    curve = Scenario(PROFILE, SLA, np.ones(1)).load_lateness_curve
    random = np.random.default_rng(replicas)
    phase = 2 * np.pi * np.arange(2 * DAY_S + seconds) / DAY_S
    level = UTILIZATION * replicas * curve.sla_rate_per_s * (1 + 0.3 * np.sin(phase))
    rates = random.poisson(level).astype(float)
    past = LoadHistory(SLA.late_share_allowed)
    past.observe(2.0 * DAY_S, rates[: 2 * DAY_S])
    name = f"{replicas} replicas"
    scaled_deployment(2.0 * DAY_S, APP, name, _Memory()).autoscaler.learn(past.state_dict())
    policy = SojournAutoscalingPolicy()
    times = []
    for context in contexts(name, replicas, rates[2 * DAY_S :], curve_to_floats(curve)):
        begin_s = time.thread_time()
        policy(context)
        times.append(1e3 * (time.thread_time() - begin_s))
    return np.array(times)


def contexts(
    name: str, replicas: int, rates: np.ndarray, curve: dict[str, float]
) -> Iterator[AutoscalingContext]:
    """Yield what Ray passes to the policy each second after two days, at these rates."""
    deployment = DeploymentID(name, APP)
    running = [ReplicaID(f"{number:08d}", deployment) for number in range(replicas)]
    constant = {
        "refused_total": 0.0,
        "queue_length": 0.0,
        "full_batch_size": float(PROFILE.best_batch_size),
        "full_batch_ms": float(PROFILE.latency_ms[PROFILE.best_batch_size - 1]),
        "sla_response_time_ms": SLA.response_time_ms,
        "sla_percentile": SLA.percentile,
        "start_time_s": 60.0,
        **AutoscalerSettings().to_floats(),
        **curve,
    }
    counted = ("offered_total", "answered_total", "counted_s")
    # All replicas have the same values, which the policy cannot know.
    series: dict[str, list[TimeStampedValue]] = {key: [] for key in (*constant, *counted)}
    metrics = {key: dict.fromkeys(running, values) for key, values in series.items()}
    for second, total in enumerate(np.cumsum(rates / replicas), 1):
        now_s = 2.0 * DAY_S + second
        counters = {**dict.fromkeys(counted, float(total)), "counted_s": float(second)}
        for key, value in (constant | counters).items():
            series[key][:] = [TimeStampedValue(now_s, value)]
        yield AutoscalingContext(
            deployment_id=deployment,
            deployment_name=name,
            app_name=APP,
            current_num_replicas=replicas,
            target_num_replicas=replicas,
            running_replicas=running,
            total_num_requests=0,
            total_queued_requests=0,
            aggregated_metrics={},
            raw_metrics=metrics,
            capacity_adjusted_min_replicas=replicas,
            capacity_adjusted_max_replicas=replicas,
            policy_state={},
            last_scale_up_time=None,
            last_scale_down_time=None,
            current_time=now_s,
            config=None,
        )


@click.command()
@quick_option(f"{QUICK_SECONDS} decisions of each fleet instead of {SECONDS}.")
@json_option
def main(quick: bool, as_json: bool) -> None:
    """Measure the CPU time of one decision, as Serve's controller makes it."""
    rows = []
    for replicas in REPLICAS:
        times_ms = decision_times_ms(replicas, QUICK_SECONDS if quick else SECONDS)
        low, median, high = np.percentile(times_ms, [5, 50, 95])
        rows.append(
            {
                "replicas": replicas,
                "median_ms": median,
                "p5_ms": low,
                "p95_ms": high,
                "longest_ms": times_ms.max(),
            }
        )
    print_result({"decisions": rows}, as_json)


if __name__ == "__main__":
    main()
