"""Measure pipelines: the cost of a hop, throughput, predicted percentiles, and joint sizing.

    python -m benchmarks.pipelines [--quick] [--json] [--plot FILE] [--skip-peers]

- *Hop*: the time that one more stage adds to a request that is alone, for stages that return their
  input: on the event loop (``co_located``), in a process (``process``), beside a deployment that
  Ray's handle calls (``ray_handle``), and a process of `mpservice`, the library of the article.
- *Throughput*: 64 clients, two stages in processes that batch up to 32 arrays of 256 floats,
  beside the same stages as Ray Serve deployments and in `mpservice`.
- *Percentiles*: stages in threads that sleep for the time of their profile, Poisson requests; the
  measured percentiles beside the predicted ones.
- *Sizing*: workers of least cost for an SLA of the whole, beside an oracle that tries all
  divisions, and beside an equal share of the response time for each stage.

The peers need Ray, and an environment that the script installs; it says if it cannot.
"""

import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import uvloop

from benchmarks.arguments import json_option, plot_option, quick_option
from benchmarks.inputs import ROOT
from benchmarks.peers.environments import UnavailableError, python_of
from benchmarks.peers.pipeline_load import requests_per_s, seconds_per_request
from pipelines import Pipeline, Stage
from pipelines.planning.sizing import equal_division, plan_pipeline
from pipelines.planning.tandem import Setting, own_settings, simulate_response_ms
from policy.errors import InfeasibleError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from sojourn.output import print_json, print_table

CLIENTS, FLOATS, HOP_STAGES = 64, 256, 4
PERCENTILES = (50.0, 90.0, 99.0)
PEER_TIMEOUT_S = 300


def same(x: Any) -> Any:
    """Return x."""
    return x


def scale(batch: list[Any]) -> list[Any]:
    """Double each array of a batch."""
    return [*(2 * np.stack(batch))]


def shift(batch: list[Any]) -> list[Any]:
    """Add three to each array of a batch."""
    return [*(np.stack(batch) + 3)]


class Sleeper:
    """Takes the time of its profile, and returns its input."""

    def __init__(self, latency_ms: Sequence[float]) -> None:
        self._latency_s = [1e-3 * ms for ms in latency_ms]

    def predict(self, batch: list[Any]) -> list[Any]:
        """Sleep until the time of a batch of this size is over."""
        end_s = time.perf_counter() + self._latency_s[len(batch) - 1]
        while (left_s := end_s - time.perf_counter()) > 0:
            time.sleep(left_s)
        return batch


async def hop_us(place: Any, seconds: float) -> float:
    """Return what one more stage adds to a request."""
    times_s = []
    for count in (1, HOP_STAGES):
        stages = [Stage(same, f"s{number}", place=place) for number in range(count)]
        async with Pipeline(stages) as pipeline:
            times_s.append(await seconds_per_request(pipeline.predict, 1, seconds))
    return 1e6 * (times_s[1] - times_s[0]) / (HOP_STAGES - 1)


async def throughput_per_s(seconds: float) -> float:
    """Return the throughput of the two stages in processes."""
    async with Pipeline([Stage(scale, batch_size=32), Stage(shift, batch_size=32)]) as pipeline:
        value = np.ones(FLOATS, np.float32)
        await pipeline.predict(value)
        return await requests_per_s(pipeline.predict, value, CLIENTS, seconds)


def measure_peer(peer: str, seconds: float) -> dict[str, float] | str:
    """Return what a peer's script measured, or why it could not."""
    try:
        python = python_of(peer) if peer == "mpservice" else sys.executable
        module = f"benchmarks.peers.{peer}_pipeline"
        words = [str(word) for word in (CLIENTS, seconds, HOP_STAGES, FLOATS)]
        done = subprocess.run(
            [python, "-m", module, *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PEER_TIMEOUT_S,
            check=False,
        )
    except (UnavailableError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    observed: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return observed


def sleeping_stages(count: int) -> list[Stage]:
    """Return stages of different speed; the first is the slowest."""
    stages = []
    for number in range(count):
        latency_ms = [20.0 - 2 * number + 1.5 * size for size in range(1, 9)]
        stages.append(
            Stage(
                Sleeper,
                f"s{number}",
                {"latency_ms": latency_ms},
                place="thread",
                batch_size=8,
                profile=Profile("sleeper", "none", np.array(latency_ms)),
            )
        )
    return stages


async def measure_percentiles(
    stages: list[Stage], rate_per_s: float, seconds: float
) -> list[float]:
    """Return the percentiles of Poisson requests, sent whether the earlier ones are answered."""
    random = np.random.default_rng(3)
    gaps_s = random.exponential(1 / rate_per_s, int(rate_per_s * seconds))
    times_ms: list[float] = []

    async def send(pipeline: Pipeline, due_s: float) -> None:
        await pipeline.predict(0)
        times_ms.append(1e3 * (time.perf_counter() - due_s))

    async with Pipeline(stages) as pipeline:
        due_s = time.perf_counter()
        tasks = []
        for gap_s in gaps_s:
            due_s += gap_s
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            tasks.append(asyncio.create_task(send(pipeline, due_s)))
        await asyncio.gather(*tasks)
    return [float(np.percentile(times_ms[len(times_ms) // 20 :], p)) for p in PERCENTILES]


def compare_percentiles(counts: Sequence[int], loads: Sequence[float], seconds: float) -> list[Any]:
    """Return the predicted and the measured percentiles of each case."""
    rows = []
    for count, load in itertools.product(counts, loads):
        stages = sleeping_stages(count)
        capacity = min(stage.profile.capacity_per_s for stage in stages if stage.profile)
        rate_per_s = load * capacity
        predicted = simulate_response_ms(stages, own_settings(stages), rate_per_s)
        measured = uvloop.run(measure_percentiles(stages, rate_per_s, seconds))
        rows.append(
            {
                "stages": count,
                "load": load,
                "predicted_ms": np.percentile(predicted, PERCENTILES).tolist(),
                "measured_ms": measured,
            }
        )
    return rows


def compare_sizing(cases: int, requests: int) -> dict[str, Any]:
    """Size random pipelines jointly, by an oracle that tries all divisions, and by equal shares."""
    random = np.random.default_rng(7)
    over_oracle: list[float] = []
    saved: list[float] = []
    impossible = 0
    while len(over_oracle) < cases:
        stages = []
        for number in range(3):
            fixed_ms, item_ms = random.uniform(1, 15), random.uniform(0.2, 3)
            size = int(random.choice([1, 4, 16]))
            latency_ms = np.array([fixed_ms + item_ms * batch for batch in range(1, size + 1)])
            profile = Profile("m", "d", latency_ms)
            stages.append(Stage(same, f"s{number}", batch_size=size, profile=profile))
        rate_per_s = random.uniform(50, 600)
        alone_ms = sum(float(s.profile.latency_ms[0]) for s in stages if s.profile is not None)
        sla = ServiceLevelObjective(random.uniform(1.6, 4) * alone_ms, 99.0)
        try:
            plan = plan_pipeline(stages, rate_per_s, sla, requests=requests)
        except InfeasibleError:
            continue
        over_oracle.append(plan.cost / _oracle_cost(stages, rate_per_s, sla, plan.cost, requests))
        equal = equal_division(stages, rate_per_s, sla)
        if equal is None:
            impossible += 1
        else:
            saved.append(1 - plan.cost / sum(equal))
    return {
        "cost_over_oracle": float(np.mean(over_oracle)),
        "worst_cost_over_oracle": float(np.max(over_oracle)),
        "saved_over_equal_division": float(np.mean(saved)) if saved else None,
        "impossible_with_equal_division": impossible / cases,
    }


def _oracle_cost(
    stages: list[Stage], rate_per_s: float, sla: ServiceLevelObjective, limit: float, requests: int
) -> float:
    """Return the least number of workers of all divisions that keep the SLA."""
    best = limit
    for workers in itertools.product(range(1, int(limit) - 1), repeat=len(stages)):
        if sum(workers) >= best:
            continue
        settings = {
            stage.name: Setting(count, stage.first_policy())
            for stage, count in zip(stages, workers, strict=True)
        }
        try:
            times_ms = simulate_response_ms(stages, settings, rate_per_s, requests=requests)
        except InfeasibleError:
            continue
        if np.percentile(times_ms, sla.percentile) <= sla.response_time_ms:
            best = float(sum(workers))
    return best


def draw(path: Path, rows: list[Any]) -> None:
    """Draw the predicted and the measured percentiles."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 5))
    for at, percentile in enumerate(PERCENTILES):
        predicted = [row["predicted_ms"][at] for row in rows]
        measured = [row["measured_ms"][at] for row in rows]
        axes.plot(predicted, measured, "o", label=f"p{percentile:g}")
    top = 1.05 * max(row["measured_ms"][-1] for row in rows)
    axes.plot([0, top], [0, top], color="grey", linewidth=0.8)
    axes.set_xlabel("predicted (ms)")
    axes.set_ylabel("measured (ms)")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)


@click.command()
@quick_option("A second for each measurement, one case of the percentiles, five of the sizing.")
@click.option("--skip-peers", is_flag=True, help="Leave out Ray Serve and mpservice.")
@json_option
@plot_option
def main(quick: bool, skip_peers: bool, as_json: bool, plot_file: Path | None) -> None:
    """Measure pipelines: hops, throughput, predicted percentiles, and joint sizing."""
    seconds = 1.0 if quick else 8.0
    hops: dict[str, Any] = {
        "co_located": uvloop.run(hop_us("loop", seconds)),
        "process": uvloop.run(hop_us("process", seconds)),
        "deployment": None,
    }
    rates: dict[str, Any] = {"sojourn": uvloop.run(throughput_per_s(seconds))}
    unavailable = {}
    for peer, hop_name, name in (("serve", "ray_handle", "ray_serve"), ("mpservice",) * 3):
        observed = "skipped" if skip_peers else measure_peer(peer, seconds)
        if isinstance(observed, str):
            unavailable[name] = observed
            hops[hop_name] = rates[name] = None
        else:
            hops[hop_name], rates[name] = observed["hop_us"], observed["throughput_per_s"]
    counts, loads = ((3,), (0.6,)) if quick else ((2, 3, 5), (0.3, 0.6, 0.9))
    rows = compare_percentiles(counts, loads, 8.0 if quick else 60.0)
    result = {
        "hop_us": hops,
        "throughput_per_s": rates,
        "unavailable": unavailable,
        "predicted_percentiles_ms": _by_case(rows, "predicted_ms"),
        "measured_percentiles_ms": _by_case(rows, "measured_ms"),
        **compare_sizing(5 if quick else 40, 20_000),
    }
    if plot_file is not None:
        draw(plot_file, rows)
    if as_json:
        print_json(result)
        return
    print_table(("hop", "µs"), [(name, us) for name, us in hops.items() if us is not None])
    print_table(("throughput", "requests/s"), [(n, r) for n, r in rates.items() if r is not None])
    for name, reason in unavailable.items():
        click.echo(f"{name}: {reason}")
    print_table(
        ("stages", "load", *(f"p{p:g} predicted / measured (ms)" for p in PERCENTILES)),
        [
            (
                row["stages"],
                row["load"],
                *(
                    f"{a:.1f} / {b:.1f}"
                    for a, b in zip(row["predicted_ms"], row["measured_ms"], strict=True)
                ),
            )
            for row in rows
        ],
    )
    print_table(("sizing", "value"), [(n, result[n]) for n in list(result)[-4:]])


def _by_case(rows: list[Any], key: str) -> dict[str, dict[str, float]]:
    names = [f"{percentile:g}" for percentile in PERCENTILES]
    return {
        f"{row['stages']} stages at {row['load']}": dict(zip(names, row[key], strict=True))
        for row in rows
    }


if __name__ == "__main__":
    main()
