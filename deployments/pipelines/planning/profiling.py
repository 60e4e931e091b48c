"""Measure the profile of each stage of a pipeline, with its own worker and an example item."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from deployments.pipelines.graph import compile_steps
from deployments.pipelines.pipeline import Pipeline
from deployments.pipelines.steps import Each, Ensemble, Stage, Step, Switch
from deployments.profiling.measure import fit_quantiles
from policy.batching_policy import BatchingPolicy
from policy.errors import InvalidInputError
from policy.profile import Profile

#: How long each batch size is measured, and how often at least.
_SECONDS, _LEAST_RUNS = 0.2, 5


async def measure_profiles(
    steps: Sequence[Step],
    example: Any,
    *,
    seconds: float = _SECONDS,
    report: Callable[[str], None] = lambda stage: None,
) -> dict[str, Profile]:
    """Measure the time of the batches of every stage that an example passes.

    Each stage runs with one worker of its own kind, so the way to a process and back is part of its
    time. It is measured at the powers of two and at its largest batch, and interpolated between;
    the profile has the medians, and how the times vary about them. The example's result is the
    input of the next stage; a branch that a switch does not choose is measured with the input of
    the switch.

    Parameters
    ----------
    steps : sequence of steps
    example : Any
        An item as a client sends it.
    seconds : float
        For each batch size.
    report : callable
        Called with the name of each stage before it is measured.

    Returns
    -------
    dict of str to Profile
        By the name of the stage.

    Raises
    ------
    InvalidInputError
        The example has no element for an `Each`.
    StageError
        A stage failed on the example.
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
    """Measure one stage.

    Parameters
    ----------
    stage : Stage
    item : Any
    seconds : float
        For each batch size.

    Returns
    -------
    profile : Profile
    result : Any
        Of the stage for `item`.

    Raises
    ------
    StartError, StageError
        Its worker did not start, or failed on the item.
    """
    largest = stage.batch_size or 1
    alone = replace(
        stage,
        workers=1,
        cpus=None if stage.cpus is None else stage.cpus[:1],
        policy=BatchingPolicy.from_control_limit(1, largest) if stage.batch_size else None,
        max_wait_ms=0.0,
        profile=None,
    )
    sizes = [2**power for power in range(largest.bit_length()) if 2**power < largest] + [largest]
    times_by_size: dict[int, list[float]] = {}
    async with Pipeline([alone], max_pending=max(largest, 1)) as pipeline:
        result = await pipeline.predict(item)  # warms up
        for size in sizes:
            times_ms: list[float] = []
            end_s = time.monotonic() + seconds
            while len(times_ms) < _LEAST_RUNS or time.monotonic() < end_s:
                # What is submitted in one turn of the loop is one batch.
                flows = [pipeline.submit(item, record_times=True) for _ in range(size)]
                await asyncio.gather(*(pipeline.result(flow) for flow in flows))
                assert flows[0].stage_times is not None
                times_ms.append(flows[0].stage_times[0][2])
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
