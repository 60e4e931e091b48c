"""Measure pipelines: the cost of a hop, throughput, and predicted percentiles.

    python -m benchmarks.pipelines [--quick] [--json] [--plot FILE] [--only PART]

- *Hop*: the time that one more stage adds to a request that is alone, for stages that return their
  input: on the event loop (``co_located``), and in a process (``process``).
- *Throughput*: 64 clients, two stages in processes that batch up to 32 arrays of 256 floats.
- *Percentiles* (``predicted``): stages in threads that sleep for the time of a batch. Their
  profiles are measured, Poisson requests are sent, and the measured percentiles are compared with
  those predicted for the very requests that were sent.
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
from deployments.pipelines.planning.tandem import response_ms_of
from policy.profile import Profile
from sojourn import Pipeline, Stage

FloatArray = NDArray[np.float64]
Call = Callable[[Any], Awaitable[Any]]

CLIENTS, FLOATS, HOP_STAGES = 64, 256, 4
PARTS = ("hops", "predicted")
PERCENTILES = (50.0, 90.0, 99.0)


def same(x: Any) -> Any:
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
        predicted_ms = response_ms_of(known, sent_ms)
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
    return {
        "hop_us": {
            "co_located": uvloop.run(hop_us("loop", seconds)),
            "process": uvloop.run(hop_us("process", seconds)),
        },
        "throughput_per_s": uvloop.run(throughput_per_s(seconds)),
    }


@click.command()
@quick_option("A second for each measurement, one case of the percentiles.")
@click.option(
    "--only",
    type=click.Choice(PARTS),
    help="One part: hops and throughput, or predicted percentiles (5 minutes).",
)
@json_option
@plot_option
def main(quick: bool, only: str | None, as_json: bool, plot_file: Path | None) -> None:
    """Measure pipelines: hops, throughput, and predicted percentiles."""
    parts = PARTS if only is None else (only,)
    if plot_file is not None and "predicted" not in parts:
        raise click.UsageError("--plot draws the predicted percentiles")
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
    print_result(result, as_json)


if __name__ == "__main__":
    main()
