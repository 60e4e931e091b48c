"""A pipeline in virtual time: the real core, and stages that take stated times."""

import heapq
import math

from deployments.pipelines.graph import compile_steps
from deployments.pipelines.items import BatchFailure, Outcome
from deployments.pipelines.pipeline_core import PipelineCore
from deployments.pipelines.stage_core import StageCore


class Machine:
    """Runs the batches of a pipeline core in virtual time.

    Parameters
    ----------
    steps : sequence of steps
        The code of each stage is a function of one item.
    latency_ms : dict
        By the name of the stage: of each batch, or a list by batch size.
    max_pending : int
    known : bool
        Whether the stages know their latency; otherwise they measure it.
    """

    def __init__(self, steps, latency_ms, max_pending=10**9, known=True):
        graph = compile_steps(steps)
        self.stages = graph.stages
        self.latency_ms = {
            stage.name: [ms] * (stage.batch_size or 1) if isinstance(ms, int | float) else ms
            for stage in graph.stages
            for ms in [latency_ms[stage.name]]
        }
        cores = [
            StageCore(
                stage.name,
                stage.first_policy(),
                stage.workers,
                self.latency_ms[stage.name] if known else None,
            )
            for stage in graph.stages
        ]
        self.core = PipelineCore(graph, cores, max_pending)
        self.now_s = 0.0
        self.ended = {}
        self.events = []
        self.order = 0

    def submit(self, value, deadline_s=math.inf):
        flow = self.core.submit(self.now_s, value, deadline_s)
        self.advance()
        return flow

    def advance(self):
        for number, batch in self.core.next_batches(self.now_s):
            end_s = (
                self.now_s + 1e-3 * self.latency_ms[self.stages[number].name][len(batch.items) - 1]
            )
            self.order += 1
            heapq.heappush(self.events, (end_s, self.order, number, batch))
        for flow in self.core.ended:
            assert flow.id not in self.ended
            self.ended[flow.id] = (self.now_s, flow)
        self.core.ended.clear()

    def run(self, until_s=math.inf):
        while True:
            wake_s = self.core.wake_at_s()
            next_s = min(self.events[0][0] if self.events else math.inf, wake_s or math.inf)
            if next_s == math.inf or next_s > until_s:
                self.now_s = max(self.now_s, until_s) if until_s < math.inf else self.now_s
                return
            self.now_s = next_s
            if self.events and self.events[0][0] <= next_s:
                _, _, number, batch = heapq.heappop(self.events)
                predict = self.stages[number].code
                outcome: Outcome
                try:
                    outcome = [predict(part.value) for part in batch.items]
                except Exception as error:
                    outcome = BatchFailure(error)
                self.core.batch_ended(self.now_s, number, batch, outcome)
            else:
                self.core.tick(self.now_s)
            self.advance()
