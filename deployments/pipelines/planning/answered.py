"""The share answered in time: a pipeline's live core, which refuses and drops, on virtual time."""

import contextlib
import heapq
import itertools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from deployments.errors import RequestError
from deployments.pipelines.core.graph import compile_steps
from deployments.pipelines.core.items import Flow
from deployments.pipelines.core.pipeline_core import PipelineCore
from deployments.pipelines.core.stage_core import stage_core
from deployments.pipelines.core.steps import Each, Ensemble, Stage, Step, Switch
from deployments.pipelines.planning.tandem import SEED, WARM_UP_SHARE, profile_of
from policy.batching_policy import BatchingPolicy
from policy.objective import ServiceLevelObjective

#: Of the requests of a simulation; so many are enough if each has many items.
_SHARE, _ENOUGH = 0.05, 500


def answered_in_time(
    core: Any,
    batch_ms: Callable[[int, int], float],
    arrivals_s: Iterable[float],
    sla_s: float,
    warm_up_s: float,
) -> int:
    """Return how many of the requests that arrive after the warm-up are answered in time.

    `core` is a `PipelineCore` or does as one; `batch_ms` returns the time of a batch of a stage and
    a size.
    """
    numbers = itertools.count()
    events: list[tuple[float, int, Any]] = [(at_s, next(numbers), None) for at_s in arrivals_s]
    in_time = 0
    while events:
        now_s = events[0][0]
        wake_s = core.wake_at_s()
        if wake_s is not None and wake_s < now_s:
            now_s = wake_s
            core.tick(now_s)
        elif (event := heapq.heappop(events)[2]) is None:
            with contextlib.suppress(RequestError):
                flow = core.submit(now_s, None, now_s + sla_s)
                heapq.heappush(events, (flow.deadline_s, next(numbers), flow))
        elif isinstance(event, Flow):
            core.expire(event)
        else:
            number, batch = event
            core.batch_ended(now_s, number, batch, [None] * len(batch.items))
        for number, batch in core.next_batches(now_s):
            end_s = now_s + 1e-3 * batch_ms(number, len(batch.items))
            heapq.heappush(events, (end_s, next(numbers), (number, batch)))
        for flow in core.ended:
            on_time = flow.error is None and now_s <= flow.deadline_s
            in_time += on_time and flow.arrival_s >= warm_up_s
        core.ended = []
    return in_time


def answered_share(
    steps: Sequence[Step],
    arrival_rate_per_s: float,
    workers: Mapping[str, int],
    sla: ServiceLevelObjective,
    *,
    policies: Mapping[str, BatchingPolicy] | None = None,
    requests: int,
) -> tuple[float, tuple[int, ...]]:
    """Return the share of Poisson requests that is answered in time, and what each stage missed.

    It takes a hundred times as long as `simulate`, so it takes a twentieth of its `requests`, and
    fewer if they have many items. Any rate will do, also one at which stages cannot keep up. Every
    stage needs a profile.
    """
    random = np.random.default_rng(SEED)
    graph = compile_steps(_stand_ins(list(steps), random))
    items = np.mean([*graph.items_per_request().values()])
    requests = int(_SHARE * requests)
    requests = min(requests, max(_ENOUGH, int(requests / items)))
    cores = [stage_core(stage, workers[stage.name]) for stage in graph.stages]
    for stage in cores:
        if policies and stage.name in policies:
            stage.use(policies[stage.name])
    profiles = [profile_of(stage) for stage in graph.stages]

    def batch_ms(number: int, size: int) -> float:
        latency_ms, quantiles = (
            profiles[number].latency_ms[size - 1],
            profiles[number].latency_quantiles,
        )
        if quantiles is not None:
            ratios, weights = quantiles.points
            latency_ms *= random.choice(ratios[size - 1], p=weights)
        return float(latency_ms)

    arrivals_s = np.cumsum(random.exponential(1.0, requests))
    arrivals_s *= requests / (arrival_rate_per_s * arrivals_s[-1])  # at exactly this rate
    first = int(WARM_UP_SHARE * requests)
    core = PipelineCore(graph, cores, sys.maxsize)
    in_time = answered_in_time(
        core, batch_ms, arrivals_s.tolist(), 1e-3 * sla.response_time_ms, float(arrivals_s[first])
    )
    return in_time / (requests - first), tuple([stage.missed for stage in cores])


def _stand_ins(step: Any, random: np.random.Generator) -> Any:
    """Return steps that send items as expected, whatever the items are."""
    if isinstance(step, Stage):
        return step
    if isinstance(step, Ensemble):
        return Ensemble([_stand_ins(branch, random) for branch in step.branches])
    if isinstance(step, Switch):
        shares = step.expected_shares
        keyed = {key: _stand_ins(part, random) for key, part in step.branches.items()}
        draw = partial(random.choice, len(shares), p=[*shares.values()])
        return replace(step, branches=keyed, choose=lambda _: [*shares][draw()])
    if isinstance(step, Each):
        items = step.expected_items
        each = replace(step, branch=_stand_ins(step.branch, random), join=list)
        return [Ensemble([[]], join=lambda _: range(items)), each]
    flat: list[Any] = []
    for part in step:
        found = _stand_ins(part, random)
        flat += found if isinstance(found, list) else [found]
    return flat
