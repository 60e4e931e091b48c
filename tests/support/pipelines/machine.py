"""A pipeline in virtual time: the real core, and stages that take stated times."""

import heapq
import math

from deployments.pipelines.core.graph import compile_steps
from deployments.pipelines.core.items import BatchFailure
from deployments.pipelines.core.pipeline_core import PipelineCore
from deployments.pipelines.core.stage_core import StageCore


class Machine:
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
        # Entries: time, order, action, its arguments.
        self._events = []
        self._order = 0
        self.ended = {}

    def batch_ms(self, number, batch):
        return self.latency_ms[self.stages[number].name][len(batch.items) - 1]

    def outcome(self, number, batch):
        try:
            return [self.stages[number].code(value) for value in batch.values]
        except Exception as error:
            return BatchFailure(error)

    def flow_ended(self, flow):
        assert flow.id not in self.ended
        self.ended[flow.id] = (self.now_s, flow)

    def at(self, time_s, action, *arguments):
        self._order += 1
        heapq.heappush(self._events, (time_s, self._order, action, arguments))

    def submit(self, value, deadline_s=math.inf):
        flow = self.core.submit(self.now_s, value, deadline_s)
        self.advance()
        return flow

    def advance(self):
        for number, batch in self.core.next_batches(self.now_s):
            end_s = self.now_s + 1e-3 * self.batch_ms(number, batch)
            self.at(end_s, self._end_batch, number, batch)
        ended, self.core.ended = self.core.ended, []
        for flow in ended:
            self.flow_ended(flow)

    def run(self, until_s=math.inf):
        while True:
            wake_s = self.core.wake_at_s()
            event_s = self._events[0][0] if self._events else math.inf
            next_s = min(event_s, math.inf if wake_s is None else wake_s)
            if next_s == math.inf or next_s > until_s:
                break
            self.now_s = next_s
            if event_s <= next_s:
                _, _, action, arguments = heapq.heappop(self._events)
                action(*arguments)
            else:
                self.core.tick(self.now_s)
            self.advance()
        if until_s < math.inf:
            self.now_s = max(self.now_s, until_s)

    def _end_batch(self, number, batch):
        self.core.batch_ended(self.now_s, number, batch, self.outcome(number, batch))
