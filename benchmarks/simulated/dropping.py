"""Compare what an overloaded pipeline still answers in time, by how it drops requests.

    python -m benchmarks.simulated.dropping [--quick] [--json]

Three stages in sequence, in virtual time, with Poisson arrivals at 1.2 to 3 times what the slowest
stage serves in full batches; that stage is the first or the last. Goodput is the requests answered
within the SLA, as a share of that rate.

- *ours*: the live core of pipelines, which refuses at the entry, and drops at each stage.
- *proactive*: PARD (Zhao et al., "PARD: Enhancing Goodput for Inference Pipeline via Proactive
  Request Dropping", arXiv 2602.08747), after its description: a request is dropped before it enters
  a batch if the time it has spent, its batch, and what later stages are expected to need exceed the
  SLA. For the later stages that is the latest mean wait in each queue, a full batch of each, and a
  low quantile of the sum of the waits for the batches before, each uniform up to a full batch. Of
  the waiting requests those with the least time left come first, under overload those with the
  most.
- *reactive*: first come, first served; a request is dropped if it would be late after this stage.
"""

import bisect
import functools
import statistics
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
import numpy as np

from benchmarks.arguments import json_option, print_result, quick_option
from deployments.pipelines.core.graph import compile_steps
from deployments.pipelines.core.items import Flow, Item, StageBatch
from deployments.pipelines.core.pipeline_core import PipelineCore
from deployments.pipelines.core.stage_core import stage_core
from deployments.pipelines.core.steps import Stage
from deployments.pipelines.planning.answered import answered_in_time
from deployments.pipelines.planning.tandem import profile_of
from policy.batcher.requests import Batch, StartReason
from policy.profile import Profile

#: Time limits of a request, and overloads.
SLAS_S, OVERLOADS = (0.4, 0.25), (1.2, 1.5, 2.0, 3.0)
#: Time of a run, of which the beginning does not count.
SECONDS, WARM_UP_S = 60.0, 5.0
#: By the name of its stage: the time of a batch, and for each of its items, in ms.
LATENCIES_MS = {"slow": (8.0, 4.0), "middle": (6.0, 3.0), "fast": (5.0, 2.5)}
BATCH_SIZE = 16
#: PARD's quantile of the waits for batches, samples of them, and how many requests are recent.
QUANTILE, SAMPLES, RECENT = 0.1, 10_000, 200
#: The order changes once the load of a stage leaves 1 by more than this.
HYSTERESIS = 0.05


class _Stage:
    """A stage of `Dropping`; its worker runs a batch until `end_s`, and puts the next together."""

    def __init__(self, stage: Stage) -> None:
        self.latency_s = [1e-3 * ms for ms in profile_of(stage).latency_ms.tolist()]
        self.queue: list[Item] = []  # the least time left first
        self.forming: list[Item] = []
        self.end_s = 0.0
        self.running = self.most_first = False
        self.waits_s = deque([0.0], RECENT)
        self._arrivals_s: deque[float] = deque(maxlen=RECENT)

    def arrive(self, now_s: float, item: Item) -> None:
        item.arrival_s = now_s
        bisect.insort(self.queue, item, key=lambda one: one.flow.deadline_s)
        self._arrivals_s.append(now_s)
        span_s = now_s - self._arrivals_s[0]
        batches = len(self._arrivals_s) / len(self.latency_s)
        load = batches * self.latency_s[-1] / span_s if span_s else 1.0
        if abs(load - 1) > HYSTERESIS:
            self.most_first = load > 1


class Dropping:
    """Stages in sequence, with one worker each, that drop requests as PARD does, or reactively."""

    def __init__(self, stages: Sequence[Stage], *, proactive: bool) -> None:
        self.ended: list[Flow] = []
        self._proactive, self._stages = proactive, [_Stage(stage) for stage in stages]
        lengths_s = np.array([stage.latency_s[-1] for stage in self._stages])
        waits_s = np.random.default_rng(0).random((SAMPLES, lengths_s.size)) * lengths_s
        # Of the stages after each: full batches, and the waits for the ones before them.
        self._rest_s = [
            float(lengths_s[number:].sum() + np.quantile(waits_s[:, number:].sum(1), QUANTILE))
            for number in range(1, lengths_s.size + 1)
        ]

    def submit(self, now_s: float, value: Any, deadline_s: float) -> Flow:
        flow = Flow(0, now_s, deadline_s)
        self._stages[0].arrive(now_s, Item(flow))
        return flow

    def next_batches(self, now_s: float) -> list[tuple[int, StageBatch]]:
        started = []
        for number, stage in enumerate(self._stages):
            self._fill(now_s, number)
            if stage.forming and not stage.running:
                items, stage.forming = stage.forming, []
                stage.running, stage.end_s = True, now_s + stage.latency_s[len(items) - 1]
                formed = Batch((), len(items), StartReason.FULL)
                started.append((number, StageBatch(items, now_s, formed)))
                self._fill(now_s, number)
        return started

    def _fill(self, now_s: float, number: int) -> None:
        """Move requests that can be in time into the next batch, and drop the others."""
        stage, ahead_s = self._stages[number], 0.0
        if self._proactive:
            later = self._stages[number + 1 :]
            ahead_s = self._rest_s[number] + sum([statistics.fmean(one.waits_s) for one in later])
        done_s = max(now_s, stage.end_s) + stage.latency_s[-1] + ahead_s
        while stage.queue and len(stage.forming) < len(stage.latency_s):
            most_first = self._proactive and stage.most_first
            item = stage.queue.pop(-1 if most_first else 0)
            if item.flow.deadline_s >= done_s:
                stage.waits_s.append(now_s - item.arrival_s)
                stage.forming.append(item)
            elif most_first:  # nor can the others
                stage.queue.clear()

    def wake_at_s(self) -> None:
        """Nothing waits for company."""

    def tick(self, now_s: float) -> None:
        """Nothing is due."""

    def expire(self, flow: Flow) -> None:
        """Do nothing: what is late is dropped as it would enter a batch."""

    def batch_ended(self, now_s: float, number: int, batch: StageBatch, outcome: Any) -> None:
        self._stages[number].running = False
        for item in batch.items:
            if number + 1 < len(self._stages):
                self._stages[number + 1].arrive(now_s, item)
            else:
                self.ended.append(item.flow)


def ours(stages: Sequence[Stage]) -> PipelineCore:
    graph = compile_steps(stages)
    return PipelineCore(graph, [stage_core(stage, 1) for stage in graph.stages], sys.maxsize)


CORES: Mapping[str, Callable[[Sequence[Stage]], PipelineCore | Dropping]] = {
    "ours": ours,
    "proactive": functools.partial(Dropping, proactive=True),
    "reactive": functools.partial(Dropping, proactive=False),
}


def compare(
    names: Sequence[str], sla_s: float, overload: float, seconds: float
) -> dict[str, float]:
    """Return the goodput of each way to drop, as a share of what the slowest stage serves."""
    stages = []
    for name in names:
        fixed_ms, item_ms = LATENCIES_MS[name]
        profile = Profile(name, "", fixed_ms + item_ms * np.arange(1.0, BATCH_SIZE + 1))
        stages.append(Stage(len, name, batch_size=BATCH_SIZE, profile=profile))
    capacity_per_s = min(profile_of(stage).capacity_per_s for stage in stages)
    count = int(overload * capacity_per_s * seconds)
    gaps_s = np.random.default_rng(7).exponential(1 / (overload * capacity_per_s), count)
    arrivals_s = np.cumsum(gaps_s)
    most = capacity_per_s * (float(arrivals_s[-1]) - WARM_UP_S)

    def batch_ms(number: int, size: int) -> float:
        return float(profile_of(stages[number]).latency_ms[size - 1])

    return {
        kind: answered_in_time(make(stages), batch_ms, arrivals_s.tolist(), sla_s, WARM_UP_S) / most
        for kind, make in CORES.items()
    }


@click.command()
@quick_option("Ten seconds instead of a minute.")
@json_option
def main(quick: bool, as_json: bool) -> None:
    """Compare what an overloaded pipeline still answers in time, by how it drops requests."""
    names, seconds = [*LATENCIES_MS], 10.0 if quick else SECONDS
    rows = [
        {"sla_ms": 1e3 * sla_s, "slow_stage": place, "overload": overload}
        | compare(order, sla_s, overload, seconds)
        for sla_s in SLAS_S
        for place, order in (("first", names), ("last", names[::-1]))
        for overload in OVERLOADS
    ]
    print_result({"goodput": rows}, as_json)


if __name__ == "__main__":
    main()
