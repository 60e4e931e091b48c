"""The simulator against the real thing: one trace through both, side by side.

    python -m benchmarks.live.parity [--minutes 10] [--scale 7] [--trace CSV] [--json] [--plot FILE]

An hour of arrivals (configs/traces), or hours of another trace, compressed into `--minutes`, go by
Locust to `sojourn serve` with the emulated device of configs/emulated-p4.yaml: real Ray Serve,
HAProxy and autoscaler. Then the same requests per second go through the simulator, several times
with other seeds, with the start time that the real replicas took. Compared are the replicas over
time and the percentiles.
"""

import csv
import json
import math
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import yaml
from matplotlib.figure import Figure
from numpy.typing import NDArray

from autoscaler.reports import AutoscalerSettings
from benchmarks.live.load_step import CONFIG, ROOT, running_replicas, service
from deployments.config import load_service_config
from deployments.models.base import load_model
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from simulator.autoscalers.sojourn import SojournAutoscaler
from simulator.fleet import StartTime
from simulator.results import Run
from simulator.run import Scenario, simulate
from simulator.trace import load_trace
from sojourn.output import json_option, print_json, print_table

TRACE = ROOT / "configs/traces/azure_llm_2023_conv.csv.gz"
PORT = 8126
MAX_REPLICAS = 8
PERCENTILES = (50.0, 90.0, 95.0, 99.0)
SEEDS = (1, 2, 3, 4, 5)

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Outcome:
    """One run, real or simulated."""

    service_level: float
    replica_hours: float
    most_replicas: int
    scalings: int
    percentiles_ms: dict[str, float]


@dataclass(frozen=True, eq=False)
class Measured:
    """What the real service did; entries per second."""

    ready: FloatArray
    in_time: FloatArray
    outcome: Outcome
    start_time_s: float


class Watcher(threading.Thread):
    """Counts the running replicas twice a second, and notes when their number was ordered."""

    def __init__(self, dashboard: str) -> None:
        super().__init__(daemon=True)
        self.counts: list[tuple[float, int]] = []
        self._dashboard = dashboard
        self._ended = threading.Event()

    def run(self) -> None:
        """Watch until `end`."""
        while not self._ended.wait(0.5):
            count = len(running_replicas(self._dashboard))
            self.counts.append((time.monotonic(), count))

    def end(self) -> None:
        """Stop watching."""
        self._ended.set()
        self.join()


def compressed(trace: Path, begin_h: float, hours: float, minutes: int, scale: float) -> IntArray:
    """Give the requests of `hours` of a trace in `minutes`, `scale` times as many."""
    begin = int(3600 * begin_h)
    counts = load_trace(trace)[begin : begin + int(3600 * hours)]
    factor = max(1, round(60 * hours / minutes))
    whole = counts[: counts.size // factor * factor]
    summed: IntArray = np.round(scale * whole.reshape(-1, factor).sum(axis=1)).astype(np.int64)
    return summed


def write_config(folder: Path) -> Path:
    """Write the emulated device's config, for more replicas on the same cores."""
    document = yaml.safe_load(CONFIG.read_text())
    (deployment,) = document["applications"][0]["deployments"]
    deployment["autoscaling_config"]["max_replicas"] = MAX_REPLICAS
    deployment["ray_actor_options"]["num_cpus"] = 2 / MAX_REPLICAS
    del deployment["user_config"]["autoscaler"]
    path = folder / "parity.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def measure(config: Path, counts: IntArray, folder: Path) -> Measured:
    """Send the requests to the real service."""
    trace = folder / "trace.csv"
    rows = "".join(f"{second},{count}\n" for second, count in enumerate(counts))
    trace.write_text(f"second,requests\n{rows}")
    model = load_service_config(config).args.model.name
    with service(config, PORT) as summary:
        watcher = Watcher(summary["dashboard"])
        watcher.start()
        command = [sys.executable, "-m", "sojourn.cli", "loadtest", "--url", summary["url"]]
        began_s = time.monotonic()
        subprocess.run(
            [*command, "--model", model, "--trace", str(trace), "--out", str(folder), "--json"],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            check=False,  # its status tells of failed requests, which are a result here
        )
        took_s = time.monotonic() - began_s
        watcher.end()
        with urllib.request.urlopen(f"{summary['url']}/sojourn/autoscaler", timeout=5) as answer:
            decisions = json.load(answer)["decisions"]
    report = json.loads((folder / "report.json").read_text())
    with (folder / "seconds.csv").open() as file:
        seconds = list(csv.DictReader(file))
    # The load test ends with the last answer; what it took before the first request is its start.
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


def simulated(config: Path, counts: IntArray, start_time_s: float) -> list[Run]:
    """Send the same requests per second through the simulator, once for each seed."""
    read = load_service_config(config)
    model = load_model(read.args.model.import_path, read.args.model.options, "cpu")
    profile = model.profile()
    assert isinstance(profile, Profile)
    sla = read.user_config.sla
    settings: AutoscalerSettings = read.user_config.autoscaler.settings()
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
    """Sum a simulated run up as a real one is."""
    ready = np.round(run.ready)
    return Outcome(
        service_level=run.service_level,
        replica_hours=float(run.ready.sum()) / 3600,
        most_replicas=int(ready.max()),
        scalings=int(np.count_nonzero(np.diff(ready))),
        percentiles_ms={f"{p:g}": run.response_percentile_ms(p) for p in PERCENTILES},
    )


def draw(path: Path, counts: IntArray, real: Measured, runs: list[Run], sla: float) -> None:
    """Draw load, replicas, and the share in time per minute."""
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
@click.option("--trace", type=click.Path(exists=True, path_type=Path), default=TRACE)
@click.option("--begin-h", type=click.FloatRange(min=0), default=0.0, show_default=True)
@click.option("--hours", type=click.FloatRange(min=0.1), default=1.0, show_default=True)
@click.option("--minutes", type=click.IntRange(2, 60), default=10, show_default=True)
@click.option(
    "--scale", type=click.FloatRange(min=0, min_open=True), default=7.0, show_default=True
)
@click.option("--plot", "plot_file", type=click.Path(path_type=Path), help="Draw it there.")
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
    """Run the trace through both, and compare."""
    counts = compressed(trace, begin_h, hours, minutes, scale)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = write_config(folder)
        real = measure(config, counts, folder)
        runs = simulated(config, counts, real.start_time_s)
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
    told = [("real", real.outcome)] + [
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
            for name, one in told
        ],
        title=f"{counts.sum()} requests in {math.ceil(counts.size / 60)} minutes",
    )
    click.echo(
        f"replicas equal in {100 * result['replicas_equal_share']:.0f}% of the seconds, "
        f"within one in {100 * result['replicas_within_one_share']:.0f}%"
    )


if __name__ == "__main__":
    main()
