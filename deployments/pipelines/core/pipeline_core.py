"""The core of a pipeline: requests in, batches for its stages out, results back, on any clock.

The number of requests in the pipeline is bounded, and the queues between stages are not, so nothing
can block.
"""

import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from deployments.errors import BusyError, DeadlineError, DeviceError, ModelError
from deployments.pipelines.core.backlog import Backlog
from deployments.pipelines.core.errors import ResultError, StageError
from deployments.pipelines.core.graph import END, JOIN, Graph, Node
from deployments.pipelines.core.items import Flow, Frame, Item, ItemFailure, Outcome, StageBatch
from deployments.pipelines.core.stage_core import StageCore
from deployments.pipelines.core.steps import Each, Ensemble, Switch

# A request is admitted if its expected time is within this share of its limit.
_ADMISSION_SHARE = 0.97
# Measured latencies take effect after this many batches.
_REFRESH_BATCHES = 32
# Number of response times kept, for percentiles over some seconds.
_RESPONSE_TIMES = 4096


class PipelineCore:
    """The requests in a pipeline, and the queues of its stages.

    After every event the caller asks `next_batches`, runs them, answers the requests in `ended`,
    and empties it.
    """

    def __init__(self, graph: Graph, stages: Sequence[StageCore], max_pending: int) -> None:
        self.graph = graph
        self.stages = stages
        self.max_pending = max_pending
        #: Makes a request's result of the last step's, or raises a `ModelError`.
        self.finish: Callable[[Any], Any] = lambda value: value
        self.ended: list[Flow] = []
        self.open: dict[int, Flow] = {}
        self.offered = self.admitted = self.refused = self.completed = self.failed = 0
        self.late = self.cancelled = 0
        #: When the latest requests were completed, in s, and their response times, in ms.
        self.response_times: deque[tuple[float, float]] = deque(maxlen=_RESPONSE_TIMES)
        self._ids = itertools.count()
        self._nodes = graph.nodes
        self.backlog = Backlog(graph, stages)
        self._node_of = {node.stage: node for node in graph.nodes}
        self._touched: set[int] = set()
        self._batches = 0
        self.refresh(-math.inf)

    def refresh(self, now_s: float) -> None:
        for stage in self.stages:
            stage.refresh(now_s)
        self._least_ms, _ = self.graph.rest_ms([stage.latency_ms(1) for stage in self.stages])
        self.backlog.usual_ms, rest_ms = self.graph.rest_ms(
            [stage.usual_ms for stage in self.stages]
        )
        for stage, rest in zip(self.stages, rest_ms, strict=True):
            stage.rest_ms = rest

    def submit(
        self,
        now_s: float,
        value: Any,
        deadline_s: float = math.inf,
        content: Any = None,
    ) -> Flow:
        """Admit a request.

        Raises `BusyError` without room, or if the stages are too busy to answer it in time,
        `DeadlineError` if not even an idle pipeline could, and `DeviceError` if a stage has no
        worker and cannot start one.
        """
        self.offered += 1
        if len(self.open) >= self.max_pending:
            self.count_refused(self.bottleneck())
            raise BusyError(f"the pipeline is full: {len(self.open)} requests; try again later")
        for stage in self.stages:
            if stage.lost is not None:
                self.count_refused(stage)
                raise DeviceError(stage.lost)
        if deadline_s < math.inf:
            self._check_deadline(now_s, deadline_s)
        self.admitted += 1
        flow = Flow(next(self._ids), now_s, deadline_s, content)
        self.open[flow.id] = flow
        item = Item(flow)
        flow.items.add(item)
        self._advance(now_s, item, value, self.graph.entry)
        return flow

    def _check_deadline(self, now_s: float, deadline_s: float) -> None:
        for stage in self.stages:
            if not stage.workers:
                self.count_refused(stage)
                raise BusyError(
                    f"stage {stage.name!r} has no worker now; try again later", "loading"
                )
        left_ms = 1e3 * (deadline_s - now_s)
        if left_ms < self._least_ms:
            self.late += 1
            raise DeadlineError("the request's deadline is shorter than its own processing time")
        if self.expected_ms() > _ADMISSION_SHARE * left_ms:
            stage = self.bottleneck()
            self.count_refused(stage)
            raise BusyError(
                f"stage {stage.name!r} is too busy to answer in time; try again later", "deadline"
            )

    def count_refused(self, stage: StageCore, requests: int = 1) -> None:
        self.refused += requests
        stage.missed += requests

    def expected_ms(self) -> float:
        if not self.open:
            return self._least_ms
        return self.backlog.usual_ms + self.backlog.measure()[0]

    def bottleneck(self) -> StageCore:
        """Return the stage where a new request would wait longest; if nowhere, the slowest."""
        _, waits_ms = self.backlog.measure()
        if max(waits_ms) <= 0:
            waits_ms = [
                stage.item_ms * (stage.items / max(1, self.admitted)) / (stage.workers or 1)
                for stage in self.stages
            ]
        return self.stages[waits_ms.index(max(waits_ms))]

    def next_batches(self, now_s: float) -> list[tuple[int, StageBatch]]:
        started: list[tuple[int, StageBatch]] = []
        while self._touched:
            number = self._touched.pop()
            stage = self.stages[number]
            while (batch := stage.next_batch(now_s)) is not None:
                started.append((number, batch))
            for item in stage.take_late():
                self.expire(item.flow)
        return started

    def wake_at_s(self) -> float | None:
        times = [stage.wake_at_s for stage in self.stages if stage.wake_at_s is not None]
        return min(times, default=None)

    def tick(self, now_s: float) -> None:
        for number, stage in enumerate(self.stages):
            if stage.wake_at_s is not None and stage.wake_at_s <= now_s + 1e-6:
                self._touched.add(number)

    def touch(self, number: int) -> None:
        self._touched.add(number)

    def batch_ended(self, now_s: float, number: int, batch: StageBatch, outcome: Outcome) -> None:
        stage = self.stages[number]
        node = self._node_of[number]
        self._touched.add(number)
        self._batches += 1
        if self._batches % _REFRESH_BATCHES == 0:
            self.refresh(now_s)
        for item, result in stage.batch_ended(now_s, batch, outcome):
            flow = item.flow
            if type(result) is ItemFailure:
                self._fail(flow, StageError(stage.name, result.error))
            elif not flow.done:  # another item of this batch may have failed the request
                self._advance(now_s, item, result, node.next)

    def lose_stage(self, number: int, reason: str) -> None:
        """Fail all requests at a stage, and later ones, until its ``lost`` is None again."""
        self.stages[number].lost = reason
        for item in self.stages[number].give_up():
            self._fail(item.flow, DeviceError(reason))

    def cancel(self, flow: Flow) -> None:
        if not flow.done:
            self.cancelled += 1
            self._end(flow, error=None, answer=False)

    def expire(self, flow: Flow) -> None:
        if not flow.done:
            self.late += 1
            for number in {item.stage for item in flow.items}:
                self.stages[number].missed += 1
            self._end(flow, error=DeadlineError("the request cannot be answered in time"))

    def _fail(self, flow: Flow, error: Exception) -> None:
        if not flow.done:
            self.failed += 1
            self._end(flow, error=error)

    def _end(self, flow: Flow, error: Exception | None, answer: bool = True) -> None:
        flow.done = True
        flow.error = error
        del self.open[flow.id]
        for item in flow.items:
            if item.queued is not None and self.stages[item.stage].abandon(item):
                # The stage may now wait for fewer items than its policy required.
                self._touched.add(item.stage)
        flow.items.clear()
        if answer:
            self.ended.append(flow)

    def _advance(self, now_s: float, item: Item, value: Any, at: int) -> None:
        flow = item.flow
        nodes = self._nodes
        while not flow.done:
            if at == END:
                try:
                    flow.result = self.finish(value)
                except ModelError as error:
                    self._fail(flow, error)
                    return
                self.completed += 1
                self.response_times.append((now_s, 1e3 * (now_s - flow.arrival_s)))
                self._end(flow, error=None)
                return
            if at == JOIN:
                frame = item.frame
                assert frame is not None
                frame.results[item.place] = value
                frame.missing -= 1
                flow.items.discard(item)
                if frame.missing:
                    return
                item = frame.item
                fan_out = nodes[frame.node]
                assert isinstance(fan_out.step, Ensemble | Each)
                try:
                    value = fan_out.step.join(frame.results)
                except Exception as error:
                    self._fail(flow, StageError("join", error))
                    return
                at = fan_out.next
                continue
            node = nodes[at]
            if node.stage >= 0:
                stage = self.stages[node.stage]
                if stage.lost is not None:
                    self._fail(flow, DeviceError(stage.lost))
                    return
                item.value, item.stage = value, node.stage
                stage.arrive(now_s, item)
                self._touched.add(node.stage)
                return
            step = node.step
            try:
                if isinstance(step, Switch):
                    key = _branch(step, value)
                    self.backlog.count(at, key)
                    at = node.entries[key]
                    continue
                parts = _fan_out(node, value)
                if isinstance(step, Each):
                    self.backlog.count(at, 0, len(parts))
                    if not parts:
                        value, at = step.join([]), node.next
                        continue
            except Exception as error:
                self._fail(flow, StageError(type(step).__name__.lower(), error))
                return
            frame = Frame(item, at, [None] * len(parts), len(parts))
            for place, (part, entry) in enumerate(parts):
                if flow.id not in self.open:
                    return  # an earlier branch has failed the request
                branch = Item(flow, frame, place)
                flow.items.add(branch)
                self._advance(now_s, branch, part, entry)
            return


def _branch(step: Switch, value: Any) -> Any:
    key = step.choose(value)
    if key not in step.branches:
        known = ", ".join(repr(known) for known in step.branches)
        raise ResultError(f"there is no branch {key!r}; the branches are {known}")
    return key


def _fan_out(node: Node, value: Any) -> list[tuple[Any, int]]:
    """Return the values that continue from an ensemble or an each, and the entry node of each."""
    if isinstance(node.step, Ensemble):
        return [(value, entry) for entry in node.entries.values()]
    assert isinstance(node.step, Each)
    most = node.step.max_items
    # One more than allowed suffices, even of an endless iterable.
    values = list(itertools.islice(value, most + 1))
    if len(values) > most:
        raise ResultError(f"an item has more than max_items = {most} elements")
    return [(part, node.entries[0]) for part in values]
