"""Measure pipelines: the cost of a hop, throughput, predicted percentiles, and joint sizing.

    python -m benchmarks.pipelines [--quick] [--json] [--plot FILE] [--only PART]

- *Hop*: the time that one more stage adds to a request that is alone, for stages that return their
  input: on the event loop (``co_located``), and in a process (``process``).
- *Throughput*: 64 clients, two stages in processes that batch up to 32 arrays of 256 floats.
- *Percentiles* (``predicted``): stages in threads that sleep for the time of a batch. Their
  profiles are measured, Poisson requests are sent, and the measured percentiles stand beside those
  predicted for the very requests that were sent.
- *Sizing*: workers of least cost for an SLA of the whole, beside an oracle that tries all
  divisions, and beside an equal share of the response time for each stage.
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import uvloop
from matplotlib.figure import Figure
from numpy.typing import NDArray

from benchmarks.arguments import json_option, plot_option, print_result, quick_option
from deployments.pipelines.core.items import Flow
from deployments.pipelines.planning.profiling import measure_profiles
from deployments.pipelines.planning.sizing import plan_pipeline
from deployments.pipelines.planning.tandem import (
    Setting,
    own_settings,
    response_ms_of,
    simulate,
)
from policy.errors import InfeasibleError, InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from sojourn import Pipeline, Stage

FloatArray = NDArray[np.float64]
Call = Callable[[Any], Awaitable[Any]]

CLIENTS, FLOATS, HOP_STAGES = 64, 256, 4
PARTS = ("hops", "predicted", "sizing")
PERCENTILES = (50.0, 90.0, 99.0)


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


async def seconds_per_request(call: Call, value: Any, seconds: float) -> float:
    """Send one request after the other, and return the median time of one."""
    times_s = []
    end_s = time.perf_counter() + seconds
    for _ in range(20):
        await call(value)
    while (started_s := time.perf_counter()) < end_s:
        await call(value)
        times_s.append(time.perf_counter() - started_s)
    return sorted(times_s)[len(times_s) // 2]


async def requests_per_s(call: Call, value: Any, clients: int, seconds: float) -> float:
    """Run closed-loop clients for a time, and return the rate of answers."""
    answered = 0
    started_s = time.perf_counter()
    end_s = started_s + seconds

    async def client() -> None:
        nonlocal answered
        while time.perf_counter() < end_s:
            await call(value)
            answered += 1

    await asyncio.gather(*(client() for _ in range(clients)))
    return answered / (time.perf_counter() - started_s)


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


async def measure_responses(
    stages: list[Stage], rate_per_s: float, seconds: float
) -> tuple[list[Stage], FloatArray, FloatArray]:
    """Measure the profiles of the stages, and then the response times of Poisson requests.

    Each request is sent at its time, whether the earlier ones are answered or not.

    Returns
    -------
    stages : list of Stage
        With the profiles that were measured.
    sent_ms, response_ms : ndarray of float, shape (requests,)
    """
    profiles = await measure_profiles(stages, 0)
    stages = [replace(stage, profile=profiles[stage.name]) for stage in stages]
    due_s = np.cumsum(
        np.random.default_rng(3).exponential(1 / rate_per_s, int(rate_per_s * seconds))
    )
    sent_ms, response_ms = np.empty_like(due_s), np.empty_like(due_s)

    async def answer(number: int, flow: Flow) -> None:
        await flow.content
        response_ms[number] = 1e3 * time.monotonic() - sent_ms[number]

    async with Pipeline(stages, max_pending=10**6) as pipeline:
        tasks = []
        began_s = time.monotonic()
        for number, gap_s in enumerate(due_s):
            await asyncio.sleep(max(0.0, began_s + gap_s - time.monotonic()))
            sent_ms[number] = 1e3 * time.monotonic()
            tasks.append(asyncio.create_task(answer(number, pipeline.submit(0))))
        await asyncio.gather(*tasks)
    return stages, sent_ms, response_ms


def compare_percentiles(counts: Sequence[int], loads: Sequence[float], seconds: float) -> list[Any]:
    """Return the predicted and the measured percentiles of each case.

    Predicted are the response times of the very requests that were sent, from the profiles that
    were measured: chance makes no difference between the two.
    """
    rows = []
    for count, load in itertools.product(counts, loads):
        stages = sleeping_stages(count)
        capacity = min(stage.profile.capacity_per_s for stage in stages if stage.profile)
        known, sent_ms, measured_ms = uvloop.run(
            measure_responses(stages, load * capacity, seconds)
        )
        predicted_ms = response_ms_of(known, own_settings(known), sent_ms)
        warm = measured_ms.size // 20
        predicted = np.percentile(predicted_ms[warm:], PERCENTILES)
        measured = np.percentile(measured_ms[warm:], PERCENTILES)
        rows.append(
            {
                "stages": count,
                "load": load,
                "predicted_ms": predicted.tolist(),
                "measured_ms": measured.tolist(),
                "p99_error": float(predicted[-1] / measured[-1] - 1),
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
        equal = equal_division(stages, rate_per_s, sla, requests)
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


def equal_division(
    stages: list[Stage], rate_per_s: float, sla: ServiceLevelObjective, requests: int
) -> list[int] | None:
    """Return the workers of each stage if each must keep its equal share of the response time.

    None if a stage cannot keep its share with any number of workers.
    """
    share = replace(sla, response_time_ms=sla.response_time_ms / len(stages))
    try:
        plans = [plan_pipeline([stage], rate_per_s, share, requests=requests) for stage in stages]
    except InfeasibleError:
        return None
    return [int(plan.cost) for plan in plans]


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
            times_ms = simulate(stages, settings, rate_per_s, requests=requests).response_ms
        except InfeasibleError:
            continue
        if np.percentile(times_ms, sla.percentile) <= sla.response_time_ms:
            best = float(sum(workers))
    return best


def draw(path: Path, rows: list[Any]) -> None:
    """Draw the predicted and the measured percentiles."""
    figure = Figure(figsize=(6, 5), layout="constrained")
    axes = figure.subplots()
    for at, percentile in enumerate(PERCENTILES):
        predicted = [row["predicted_ms"][at] for row in rows]
        measured = [row["measured_ms"][at] for row in rows]
        axes.plot(predicted, measured, "o", label=f"p{percentile:g}")
    top = 1.05 * max(row["measured_ms"][-1] for row in rows)
    axes.plot([0, top], [0, top], color="gray", linewidth=0.8)
    axes.set(xlabel="predicted (ms)", ylabel="measured (ms)")
    axes.legend()
    figure.savefig(path)


def measure_hops(seconds: float) -> dict[str, Any]:
    """Return the time of a hop and the throughput."""
    return {
        "hop_us": {
            "co_located": uvloop.run(hop_us("loop", seconds)),
            "process": uvloop.run(hop_us("process", seconds)),
        },
        "throughput_per_s": uvloop.run(throughput_per_s(seconds)),
    }


@click.command()
@quick_option("A second for each measurement, one case of the percentiles, five of the sizing.")
@click.option(
    "--only",
    type=click.Choice(PARTS),
    help="One part: hops and throughput, predicted percentiles (5 minutes), or sizing.",
)
@json_option
@plot_option
def main(quick: bool, only: str | None, as_json: bool, plot_file: Path | None) -> None:
    """Measure pipelines: hops, throughput, predicted percentiles, and joint sizing."""
    parts = PARTS if only is None else (only,)
    if plot_file is not None and "predicted" not in parts:
        raise InvalidInputError("--plot draws the predicted percentiles")
    result: dict[str, Any] = {}
    if "hops" in parts:
        result |= measure_hops(1.0 if quick else 8.0)
    if "predicted" in parts:
        counts, loads = ((3,), (0.6,)) if quick else ((2, 3, 5), (0.3, 0.6, 0.9))
        rows = compare_percentiles(counts, loads, 8.0 if quick else 27.0)
        result |= {
            "percentiles": rows,
            "worst_p99_error": max(abs(row["p99_error"]) for row in rows),
        }
        if plot_file is not None:
            draw(plot_file, rows)
    if "sizing" in parts:
        result |= compare_sizing(5 if quick else 40, 20_000)
    print_result(result, as_json)


if __name__ == "__main__":
    main()
