"""Measure the profile of each stage of a pipeline, with its own worker and an example item."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from deployments.pipelines.core.graph import compile_steps
from deployments.pipelines.core.steps import Each, Ensemble, Stage, Step, Switch
from deployments.pipelines.pipeline import Pipeline
from deployments.profiling.measure import fit_quantiles
from policy.errors import InvalidInputError
from policy.profile import Profile

#: Minimum time and number of batches per batch size.
_SECONDS, _LEAST_RUNS = 0.2, 5


async def measure_profiles(
    steps: Sequence[Step],
    example: Any,
    *,
    seconds: float = _SECONDS,
    report: Callable[[str], None] = lambda stage: None,
) -> dict[str, Profile]:
    """Measure the time of the batches of every stage that an example passes.

    Each stage runs with one worker of its own kind, for `seconds` at the powers of two and at its
    largest batch. `report` gets the name of each stage. Raises `InvalidInputError` if the example
    has no element for an `Each`, and `StageError` if a stage failed on it.
    """
    compile_steps(steps)
    profiles: dict[str, Profile] = {}

    async def visit(step: "Step | Sequence[Step]", item: Any) -> Any:
        if isinstance(step, Stage):
            report(step.name)
            profiles[step.name], result = await measure_stage(step, item, seconds)
            return result
        if isinstance(step, Ensemble):
            return step.join([await visit(branch, item) for branch in step.branches])
        if isinstance(step, Each):
            items = [*item]
            if not items:
                raise InvalidInputError("example: it has no element for a step of kind each")
            return step.join([await visit(step.branch, items[0])] * len(items))
        if isinstance(step, Switch):
            results = {key: await visit(branch, item) for key, branch in step.branches.items()}
            return results[step.choose(item)]
        for part in step:
            item = await visit(part, item)
        return item

    await visit(list(steps), example)
    return profiles


async def measure_stage(stage: Stage, item: Any, seconds: float) -> tuple[Profile, Any]:
    """Return the profile of a stage, and its result for an item; `StartError` or `StageError`."""
    largest = stage.batch_size or 1
    sizes = [2**power for power in range(largest.bit_length()) if 2**power < largest] + [largest]
    times_by_size: dict[int, list[float]] = {}
    cpus = None if stage.cpus is None else stage.cpus[:1]
    alone = replace(stage, workers=1, cpus=cpus, profile=None, policy=None, max_wait_ms=0.0)
    async with Pipeline([alone], max_pending=largest) as pipeline:
        result = await pipeline.predict(item)  # warms up
        (core,) = pipeline.core.stages
        for size in sizes:
            times_ms: list[float] = []
            end_s = time.monotonic() + seconds
            while len(times_ms) < _LEAST_RUNS or time.monotonic() < end_s:
                before_s = core.busy_s
                # Those of one turn of the event loop are one batch.
                await asyncio.gather(*[pipeline.predict(item) for _ in range(size)])
                times_ms.append(1e3 * (core.busy_s - before_s))
            times_by_size[size] = times_ms
    medians_ms = [float(np.median(times_ms)) for times_ms in times_by_size.values()]
    latency_ms = np.interp(
        np.arange(1, largest + 1), sizes, np.maximum.accumulate(np.array(medians_ms))
    )
    measured = {"batch_sizes": sizes, "median_ms": medians_ms}
    quantiles = fit_quantiles(times_by_size, largest)
    return (
        Profile(
            stage.name, stage.device, latency_ms, latency_quantiles=quantiles, measured=measured
        ),
        result,
    )
