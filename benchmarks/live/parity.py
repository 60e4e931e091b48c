"""Compare the simulator with a real fleet on the same trace.

    python -m benchmarks.live.parity [--minutes 10] [--scale 7] [--trace CSV] [--begin-h H]
        [--hours H] [--json] [--plot FILE]

An hour of arrivals (configs/traces), or hours of another trace, is compressed into `--minutes`.
Locust sends it to `sojourn serve` with the emulated device of configs/emulated-p4.yaml, behind real
Ray Serve, HAProxy and autoscaler. The same requests per second then go through the simulator, with
five seeds and the start time that the real replicas took. The replicas over time and the
percentiles are compared. Takes a little longer than `--minutes`.
"""

import csv
import math
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import yaml
from matplotlib.figure import Figure
from numpy.typing import NDArray

from autoscaler.history.traces import load_trace
from autoscaler.settings import AutoscalerSettings
from autoscaler.simulator.autoscalers.sojourn import SojournAutoscaler
from autoscaler.simulator.results import Run
from autoscaler.simulator.scenario import Scenario
from autoscaler.simulator.simulation import simulate
from autoscaler.simulator.start_time import StartTime
from benchmarks.arguments import json_option, plot_option
from benchmarks.inputs import AZURE_CONVERSATION_TRACE, EMULATED_P4_CONFIG
from benchmarks.live.local_service import ReplicaWatcher, get_json, load_test, running_service
from deployments.config.document import load_service_config
from deployments.models.loading import load_model
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from sojourn.output import print_json, print_table

PORT = 8126
MAX_REPLICAS = 8
WATCH_EVERY_S = 0.5
PERCENTILES = (50.0, 90.0, 95.0, 99.0)
SEEDS = (1, 2, 3, 4, 5)

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Outcome:
    """The figures of one run, real or simulated; percentiles are by name, such as "99"."""

    service_level: float
    replica_hours: float
    most_replicas: int
    scalings: int
    percentiles_ms: dict[str, float]


@dataclass(frozen=True, eq=False)
class Measured:
    """What the real service did.

    Attributes
    ----------
    ready : FloatArray, shape (seconds,)
        Running replicas.
    in_time : FloatArray, shape (seconds,)
        Fraction of each second's requests answered in time.
    outcome : Outcome
    start_time_s : float
        How long a replica took to start, as the autoscaler measured it.
    """

    ready: FloatArray
    in_time: FloatArray
    outcome: Outcome
    start_time_s: float


def compressed(trace: Path, begin_h: float, hours: float, minutes: int, scale: float) -> IntArray:
    """Compress `hours` of a trace into `minutes`, with `scale` times the requests.

    Returns
    -------
    IntArray, shape (seconds,)
        Requests of each second.
    """
    begin = int(3600 * begin_h)
    counts = load_trace(trace)[begin : begin + int(3600 * hours)]
    factor = max(1, round(60 * hours / minutes))
    whole = counts[: counts.size // factor * factor]
    summed: IntArray = np.round(scale * whole.reshape(-1, factor).sum(axis=1)).astype(np.int64)
    return summed


def write_config(folder: Path) -> Path:
    """Write the emulated device's config with room for `MAX_REPLICAS` on two cores."""
    document = yaml.safe_load(EMULATED_P4_CONFIG.read_text())
    (deployment,) = document["applications"][0]["deployments"]
    deployment["autoscaling_config"]["max_replicas"] = MAX_REPLICAS
    deployment["ray_actor_options"]["num_cpus"] = 2 / MAX_REPLICAS
    del deployment["user_config"]["autoscaler"]
    path = folder / "parity.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def measure(config: Path, counts: IntArray, folder: Path) -> Measured:
    """Send the requests to the real service and record what it does."""
    trace = folder / "trace.csv"
    rows = "".join(f"{second},{count}\n" for second, count in enumerate(counts))
    trace.write_text(f"second,requests\n{rows}")
    model = load_service_config(config).args.model.name
    with running_service(config, PORT) as summary:
        watcher = ReplicaWatcher(summary["dashboard"], WATCH_EVERY_S)
        watcher.start()
        began_s = time.monotonic()
        options = ["--model", model, "--trace", str(trace), "--out", str(folder)]
        # Lost requests end the load test with an error status; here they are a result.
        report = load_test(summary["url"], *options, check=False)
        took_s = time.monotonic() - began_s
        watcher.end()
        decisions = get_json(f"{summary['url']}/sojourn/autoscaler")["decisions"]
    with (folder / "seconds.csv").open() as file:
        seconds = list(csv.DictReader(file))
    # The load test ends with the last answer, so the rest of its time was spent starting up.
    first_s = began_s + max(0.0, took_s - counts.size)
    times, numbers = np.array(watcher.counts).T
    ready = np.interp(first_s + np.arange(counts.size) + 0.5, times, numbers).round()
    share = np.array([float(row["within_sla_share"] or "nan") for row in seconds])[: counts.size]
    return Measured(
        ready,
        share,
        Outcome(
            service_level=report["share_within_sla"],
            replica_hours=float(ready.sum()) / 3600,
            most_replicas=int(ready.max()),
            scalings=int(np.count_nonzero(np.diff(ready))),
            percentiles_ms={
                f"{p:g}": report["response_percentiles_ms"][f"{p:g}"] for p in PERCENTILES
            },
        ),
        start_time_s=float(decisions[-1]["horizon_s"]),
    )


def simulate_all(config: Path, counts: IntArray, start_time_s: float) -> list[Run]:
    """Send the same requests per second through the simulator, once for each seed."""
    service = load_service_config(config)
    model = load_model(service.args.model.import_path, service.args.model.options, "cpu")
    profile = model.profile()
    assert isinstance(profile, Profile)
    sla = service.user_config.sla
    settings: AutoscalerSettings = service.user_config.autoscaler.settings()
    scenario = Scenario(
        profile=profile,
        objective=ServiceLevelObjective(sla.response_time_ms, sla.percentile),
        counts=counts.astype(np.float64),
        start_time=StartTime(start_time_s),
        max_replicas=MAX_REPLICAS,
    )
    return [
        simulate(
            replace(scenario, seed=seed), SojournAutoscaler(settings, max_replicas=MAX_REPLICAS)
        )
        for seed in SEEDS
    ]


def outcome_of(run: Run) -> Outcome:
    """Sum up a simulated run as a real one is summed up."""
    ready = np.round(run.ready)
    return Outcome(
        service_level=run.service_level,
        replica_hours=float(run.ready.sum()) / 3600,
        most_replicas=int(ready.max()),
        scalings=int(np.count_nonzero(np.diff(ready))),
        percentiles_ms={f"{p:g}": run.response_percentile_ms(p) for p in PERCENTILES},
    )


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
@click.option(
    "--begin-h",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Hour of the trace to begin at.",
)
@click.option(
    "--hours",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    help="Hours of the trace to send.",
)
@click.option(
    "--minutes",
    type=click.IntRange(2, 60),
    default=10,
    show_default=True,
    help="Minutes to compress them into.",
)
@click.option(
    "--scale",
    type=click.FloatRange(min=0, min_open=True),
    default=7.0,
    show_default=True,
    help="Factor on the number of requests.",
)
@plot_option
@json_option
def main(
    trace: Path,
    begin_h: float,
    hours: float,
    minutes: int,
    scale: float,
    plot_file: Path | None,
    as_json: bool,
) -> None:
    """Compare the simulator with a real fleet on the same trace."""
    counts = compressed(trace, begin_h, hours, minutes, scale)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = write_config(folder)
        real = measure(config, counts, folder)
        runs = simulate_all(config, counts, real.start_time_s)
        sla = load_service_config(config).user_config.sla
    if plot_file is not None:
        draw(plot_file, counts, real, runs, sla.percentile)
    apart = [np.abs(np.round(run.ready) - real.ready) for run in runs]
    result: dict[str, Any] = {
        "requests": int(counts.sum()),
        "start_time_s": real.start_time_s,
        "real": asdict(real.outcome),
        "simulated": [asdict(outcome_of(run)) for run in runs],
        "replicas_equal_share": float(np.mean([np.mean(gap == 0) for gap in apart])),
        "replicas_within_one_share": float(np.mean([np.mean(gap <= 1) for gap in apart])),
    }
    if as_json:
        print_json(result)
        return
    outcomes = [("real", real.outcome)] + [
        (f"simulated, seed {seed}", outcome_of(run)) for seed, run in zip(SEEDS, runs, strict=True)
    ]
    print_table(
        (
            "run",
            "in time",
            "replica-hours",
            "most",
            "scalings",
            *(f"p{p:g} ms" for p in PERCENTILES),
        ),
        [
            (
                name,
                f"{100 * one.service_level:.2f}%",
                f"{one.replica_hours:.2f}",
                one.most_replicas,
                one.scalings,
                *(f"{ms:.0f}" for ms in one.percentiles_ms.values()),
            )
            for name, one in outcomes
        ],
        title=f"{counts.sum()} requests in {math.ceil(counts.size / 60)} minutes",
    )
    click.echo(
        f"replicas equal in {100 * result['replicas_equal_share']:.0f}% of the seconds, "
        f"within one in {100 * result['replicas_within_one_share']:.0f}%"
    )


if __name__ == "__main__":
    main()
