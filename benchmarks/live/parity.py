"""Compare the simulator with a real fleet on the same trace.

    python -m benchmarks.live.parity [--trace CSV] [--hours H] [--minutes 10] [--scale 7] [--json]
        [--plot FILE]

The first hours of a trace (by default the one in configs/traces) are compressed into `--minutes`.
Locust sends them to `sojourn serve` with the emulated device of configs/emulated-p4.yaml, behind
real Ray Serve, HAProxy and autoscaler. The same requests per second then go through the simulator,
with five seeds and the start time that the real replicas took. The replicas over time and the
percentiles are compared. Takes a little longer than `--minutes`.
"""

import csv
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from autoscaler.history.traces import load_trace
from autoscaler.simulator.autoscalers.sojourn import SojournAutoscaler
from autoscaler.simulator.results import Run
from autoscaler.simulator.scenario import Scenario
from autoscaler.simulator.simulation import simulate
from autoscaler.simulator.start_time import StartTime
from benchmarks.arguments import json_option, plot_option, print_result
from benchmarks.inputs import AZURE_CONVERSATION_TRACE
from benchmarks.local_service import (
    ReplicaWatcher,
    emulated_p4_document,
    load_test,
    running_service,
)
from deployments.config.user_config import AutoscalerConfig
from deployments.local.urls import get_json
from deployments.models.loading import load_model
from policy.objective import ServiceLevelObjective
from policy.profile import Profile

PORT = 8126
MAX_REPLICAS = 8
WATCH_EVERY_S = 0.5
PERCENTILES = (50.0, 90.0, 95.0, 99.0)
SEEDS = (1, 2, 3, 4, 5)

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Measured:
    """The real service by the second, with the start time that the autoscaler measured."""

    ready: FloatArray
    in_time: FloatArray
    service_level: float
    percentiles_ms: list[float]
    start_time_s: float


def compressed(trace: Path, hours: float, minutes: int, scale: float) -> IntArray:
    """Compress the first `hours` of a trace into `minutes`, with `scale` times the requests."""
    counts = load_trace(trace)[: int(3600 * hours)]
    factor = max(1, round(60 * hours / minutes))
    whole = counts[: counts.size // factor * factor]
    summed: IntArray = np.round(scale * whole.reshape(-1, factor).sum(axis=1)).astype(np.int64)
    return summed


def document() -> dict[str, Any]:
    """Return the emulated device's config with room for `MAX_REPLICAS` on two cores."""
    content = emulated_p4_document()
    (deployment,) = content["applications"][0]["deployments"]
    deployment["autoscaling_config"]["max_replicas"] = MAX_REPLICAS
    deployment["ray_actor_options"]["num_cpus"] = 2 / MAX_REPLICAS
    del deployment["user_config"]["autoscaler"]
    return content


def measure(content: dict[str, Any], counts: IntArray, folder: Path) -> Measured:
    """Send the requests to the real service and record what it does."""
    trace = folder / "trace.csv"
    rows = "".join(f"{second},{count}\n" for second, count in enumerate(counts))
    trace.write_text(f"second,requests\n{rows}")
    model = content["applications"][0]["args"]["model"]["name"]
    with running_service(content, PORT) as service:
        watcher = ReplicaWatcher(service.dashboard, WATCH_EVERY_S)
        watcher.start()
        began_s = time.monotonic()
        options = ["--model", model, "--trace", str(trace), "--out", str(folder)]
        # Lost requests end the load test with an error status; here they are a result.
        report = load_test(service.url, *options, check=False)
        took_s = time.monotonic() - began_s
        watcher.end()
        decisions = get_json(f"{service.url}/sojourn/autoscaler")["decisions"]
    with (folder / "seconds.csv").open() as file:
        seconds = list(csv.DictReader(file))
    # The load test ends with the last answer, so the rest of its time was spent starting up.
    first_s = began_s + max(0.0, took_s - counts.size)
    times, numbers = np.array(watcher.counts).T
    return Measured(
        ready=np.interp(first_s + np.arange(counts.size) + 0.5, times, numbers).round(),
        in_time=np.array([float(row["within_sla_share"] or "nan") for row in seconds])[
            : counts.size
        ],
        service_level=report["share_within_sla"],
        percentiles_ms=[report["response_percentiles_ms"][f"{p:g}"] for p in PERCENTILES],
        start_time_s=float(decisions[-1]["horizon_s"]),
    )


def simulate_all(content: dict[str, Any], counts: IntArray, start_time_s: float) -> list[Run]:
    """Send the same requests per second through the simulator, once for each seed."""
    (application,) = content["applications"]
    model = application["args"]["model"]
    profile = load_model(model["import_path"], model["options"], "cpu").profile()
    assert isinstance(profile, Profile)
    scenario = Scenario(
        profile=profile,
        objective=objective_of(content),
        counts=counts.astype(np.float64),
        start_time=StartTime(start_time_s),
        max_replicas=MAX_REPLICAS,
    )
    settings = AutoscalerConfig().settings()
    return [
        simulate(
            replace(scenario, seed=seed), SojournAutoscaler(settings, max_replicas=MAX_REPLICAS)
        )
        for seed in SEEDS
    ]


def objective_of(content: dict[str, Any]) -> ServiceLevelObjective:
    sla = content["applications"][0]["deployments"][0]["user_config"]["sla"]
    return ServiceLevelObjective(sla["response_time_ms"], sla["percentile"])


def row_of(
    name: str, ready: FloatArray, service_level: float, percentiles_ms: list[float]
) -> dict[str, Any]:
    """Return a row of the table: a run, real or simulated."""
    ready = np.round(ready)
    return {
        "run": name,
        "service_level": service_level,
        "replica_hours": float(ready.sum()) / 3600,
        "most_replicas": int(ready.max()),
        "scalings": int(np.count_nonzero(np.diff(ready))),
        **{f"p{p:g}_ms": ms for p, ms in zip(PERCENTILES, percentiles_ms, strict=True)},
    }


def draw(path: Path, counts: IntArray, real: Measured, runs: list[Run], sla: float) -> None:
    """Draw the load, the replicas, and the fraction of late requests per minute."""
    figure = Figure(figsize=(9, 6), layout="constrained", dpi=120)
    load, replicas, in_time = figure.subplots(3, 1, sharex=True, height_ratios=(1.5, 2, 1.5))
    minutes = np.arange(counts.size) / 60
    load.fill_between(minutes, counts, step="mid", color="#56B4E9")
    load.set(ylabel="requests/s", ylim=(0, None))
    for run in runs:
        replicas.step(minutes, run.ready, where="mid", color="#E69F00", alpha=0.45, linewidth=1)
    replicas.step([], [], color="#E69F00", label=f"simulated, {len(runs)} seeds")
    replicas.step(minutes, real.ready, where="mid", color="#222222", linewidth=1.8, label="real")
    replicas.set(ylabel="replicas", ylim=(0, None))
    replicas.legend(loc="upper left", ncols=2)
    window = np.arange(0, counts.size, 60)
    offered = np.add.reduceat(counts, window)
    late = 1 - np.add.reduceat(np.nan_to_num(real.in_time, nan=1.0) * counts, window) / offered
    for run in runs:
        in_time.plot(
            window / 60 + 0.5, 100 * (1 - run.windows_in_time()), color="#E69F00", alpha=0.4
        )
    in_time.plot(window / 60 + 0.5, 100 * late, color="#222222", linewidth=1.8)
    in_time.axhline(100 - sla, color="#D55E00", linestyle="--")
    in_time.set(ylabel="% late, per minute", xlabel="minutes", ylim=(0, None))
    for axes in (load, replicas, in_time):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


@click.command()
@click.option(
    "--trace",
    type=click.Path(exists=True, path_type=Path),
    default=AZURE_CONVERSATION_TRACE,
    help="CSV with the header second,requests.  [default: the one in configs/traces]",
)
@click.option("--hours", type=click.FloatRange(min=0.1), default=1.0, help="Hours of the trace.")
@click.option("--minutes", type=click.IntRange(2, 60), default=10, help="Minutes they take.")
@click.option(
    "--scale",
    type=click.FloatRange(min=0, min_open=True),
    default=7.0,
    help="Factor on the number of requests.",
)
@plot_option
@json_option
def main(
    trace: Path, hours: float, minutes: int, scale: float, plot_file: Path | None, as_json: bool
) -> None:
    """Compare the simulator with a real fleet on the same trace."""
    counts = compressed(trace, hours, minutes, scale)
    content = document()
    with tempfile.TemporaryDirectory() as name:
        real = measure(content, counts, Path(name))
    runs = simulate_all(content, counts, real.start_time_s)
    if plot_file is not None:
        draw(plot_file, counts, real, runs, objective_of(content).percentile)
    apart = [np.abs(np.round(run.ready) - real.ready) for run in runs]
    rows = [row_of("real", real.ready, real.service_level, real.percentiles_ms)]
    for seed, run in zip(SEEDS, runs, strict=True):
        percentiles_ms = [run.response_percentile_ms(p) for p in PERCENTILES]
        rows.append(row_of(f"seed {seed}", run.ready, run.service_level, percentiles_ms))
    print_result(
        {
            "requests": int(counts.sum()),
            "start_time_s": real.start_time_s,
            "replicas_equal_share": float(np.mean([np.mean(gap == 0) for gap in apart])),
            "replicas_within_one_share": float(np.mean([np.mean(gap <= 1) for gap in apart])),
            "runs": rows,
        },
        as_json,
    )


if __name__ == "__main__":
    main()
