"""A pipeline on an event loop: `await pipeline.predict(x)`, and streams with bounded memory."""

import asyncio
import math
import os
import time
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping, Sequence
from typing import Any, Self

from deployments.errors import BusyError
from deployments.pipelines.core.graph import compile_steps
from deployments.pipelines.core.items import Flow, Outcome, StageBatch
from deployments.pipelines.core.pipeline_core import PipelineCore
from deployments.pipelines.core.stage_core import stage_core
from deployments.pipelines.core.steps import AVAILABLE_CPUS, Stage, Step, cpus_problem
from deployments.pipelines.stage_workers import StageWorkers
from deployments.pipelines.streams import stream_results
from deployments.pipelines.workers.replicas import ReplicaAccess
from policy.errors import InvalidInputError
from policy.objective import Objective, ServiceLevelObjective
from policy.values import check_at_least

MAX_PENDING = 1024


class Pipeline:
    """Stages with their own workers and batches, used as one function.

    Use it as an async context manager, or call `start` and `close`. Raises `InvalidInputError` if
    the steps are not a pipeline.

    Parameters
    ----------
    steps : sequence of steps
        See `deployments.pipelines.core.steps`.
    sla : ServiceLevelObjective, optional
        Requests that cannot be answered within its response time are refused or cancelled.
    max_pending : int
        The most requests in the pipeline; more are refused.
    replicas : mapping of str to ReplicaAccess, optional
        How to reach the stages whose workers are Ray replicas.
    cpus : sequence of int, optional
        The CPUs of the event loop: of queues, batching and stages on it. Workers stay elsewhere.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        sla: ServiceLevelObjective | None = None,
        max_pending: int = MAX_PENDING,
        replicas: Mapping[str, ReplicaAccess] | None = None,
        cpus: Sequence[int] | None = None,
    ) -> None:
        check_at_least(1, "max_pending", max_pending)
        if cpus is not None and (problem := cpus_problem(cpus)):
            raise InvalidInputError(f"pipeline: {problem}")
        self._cpus = cpus
        graph = compile_steps(steps)
        self.sla = sla
        cores = [stage_core(stage, workers=0) for stage in graph.stages]
        self.core = PipelineCore(graph, cores, max_pending)
        self.replicas = replicas or {}
        self._workers = StageWorkers(
            self.core, graph.stages, self._batch_ended, self._pump, self.replicas
        )
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s: float | None = None
        self._started = self._running = self._pumping = self._pump_due = False
        #: Set whenever requests have left.
        self._left = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start all workers, or raise `StartError`; return when each can take a batch."""
        if self._started:
            raise InvalidInputError("pipeline: it has been started before")
        self._loop = asyncio.get_running_loop()
        self._started = True
        self._running = True
        if self._cpus is not None:
            os.sched_setaffinity(0, self._cpus)
        try:
            await self._workers.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End all workers. Unanswered requests fail."""
        if self._running and self._cpus is not None:
            os.sched_setaffinity(0, AVAILABLE_CPUS)
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
        self._answer_ended()
        for flow in [*self.core.open.values()]:
            self.core.cancel(flow)
            set_exception(flow, BusyError("the pipeline is closed", "stopping"))
        self._left.set()
        await self._workers.close()

    def resize(self, name: str, workers: int) -> None:
        """Change the number of workers of a running stage; no request is lost.

        Raises `InvalidInputError` if the stage cannot have this number.
        """
        self._workers.resize(name, workers)

    def use_objective(self, name: str, objective: Objective) -> None:
        """Solve the policy of a stage for another objective, if it has a solved one."""
        self._workers.use_objective(name, objective)

    @property
    def stages(self) -> list[Stage]:
        """The stages in the order of the steps, with their current profiles."""
        return self._workers.stages

    async def drain(self) -> None:
        """Wait until all admitted requests are answered."""
        while self.core.open:
            self._left.clear()
            await self._left.wait()

    def submit(
        self,
        value: Any,
        *,
        timeout_ms: float | None = None,
        arrival_s: float | None = None,
    ) -> Flow:
        """Admit a request; its ``content`` is the future of its result.

        `arrival_s` is by `time.monotonic`. Errors as of `PipelineCore.submit`.
        """
        self._check_running()
        now_s = time.monotonic()
        within_ms = math.inf if timeout_ms is None else timeout_ms
        if self.sla is not None:
            within_ms = min(within_ms, self.sla.response_time_ms)
        deadline_s = (now_s if arrival_s is None else arrival_s) + 1e-3 * within_ms
        future: asyncio.Future[Any] = self._loop.create_future()
        flow = self.core.submit(now_s, value, deadline_s, future)
        if within_ms < math.inf:
            timer = self._loop.call_later(deadline_s - now_s, self._expire, flow)
            future.add_done_callback(lambda _: timer.cancel())
        self._pump_soon()
        return flow

    async def predict(self, value: Any, *, timeout_ms: float | None = None) -> Any:
        """Return the pipeline's result for one value.

        Raises `StageError` if a stage failed on it, `BusyError` if the pipeline has no room or
        cannot answer in time, `DeviceError` if a stage has no worker and cannot start one, and
        `DeadlineError` if `timeout_ms` passed or can no longer be met.
        """
        return await self.result(self.submit(value, timeout_ms=timeout_ms))

    async def result(self, flow: Flow) -> Any:
        """Wait for the result of an admitted request; if cancelled, cancel the request."""
        try:
            return await flow.content
        except asyncio.CancelledError:
            self.give_up(flow)
            raise

    def give_up(self, flow: Flow) -> None:
        """Cancel a request, if it has not ended."""
        if not flow.done:
            self.core.cancel(flow)
            flow.content.cancel()
            self._left.set()
            self._pump()

    def stream(
        self,
        values: Iterable[Any] | AsyncIterable[Any],
        *,
        in_flight: int | None = None,
    ) -> AsyncGenerator[Any, None]:
        """Stream many values through; their results come in order, with bounded memory.

        The SLA does not apply. An exception among the values takes its place among the results, as
        the error of a value does. At most `in_flight` values are in the pipeline or wait to be
        yielded, by default half of the pipeline's room.
        """
        limit = max(1, self.core.max_pending // 2) if in_flight is None else in_flight
        check_at_least(1, "in_flight", limit)
        return stream_results(values, self._submit_when_room, self.give_up, limit)

    async def _submit_when_room(self, value: Any) -> Flow:
        while self._running and len(self.core.open) >= self.core.max_pending:
            self._left.clear()
            await self._left.wait()
        self._check_running()
        flow = self.core.submit(time.monotonic(), value, content=self._loop.create_future())
        self._pump_soon()
        return flow

    def _check_running(self) -> None:
        if not self._running:
            raise BusyError("the pipeline is not running", "stopping")

    def _pump_soon(self) -> None:
        """Pump at the end of this turn of the event loop, so that requests can share a batch."""
        if not self._pump_due:
            self._pump_due = True
            self._loop.call_soon(self._pump)

    def _expire(self, flow: Flow) -> None:
        self.core.expire(flow)
        self._answer_ended()
        self._pump()

    def _batch_ended(self, number: int, batch: StageBatch, outcome: Outcome) -> None:
        self.core.batch_ended(time.monotonic(), number, batch, outcome)
        self._pump()

    def _pump(self) -> None:
        self._pump_due = False
        if self._pumping or not self._running:
            return  # a worker on the event loop has ended its batch: the loop below continues
        self._pumping = True
        try:
            while batches := self.core.next_batches(time.monotonic()):
                for number, batch in batches:
                    self._workers.run(number, batch)
        finally:
            self._pumping = False
        self._answer_ended()
        wake_at_s = self.core.wake_at_s()
        if wake_at_s != self._timer_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._timer_s = None, wake_at_s
            if wake_at_s is not None:
                delay_s = wake_at_s - time.monotonic()
                self._timer = self._loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = self._timer_s = None
        self.core.tick(time.monotonic())
        self._pump()

    def _answer_ended(self) -> None:
        ended = self.core.ended
        if not ended:
            return
        self.core.ended = []
        for flow in ended:
            # A future that its client cancelled takes no result.
            if flow.content.done():
                continue
            if flow.error is None:
                flow.content.set_result(flow.result)
            else:
                set_exception(flow, flow.error)
        self._left.set()


def set_exception(flow: Flow, error: Exception) -> None:
    if not flow.content.done():
        flow.content.set_exception(error)
        flow.content.exception()  # retrieved here, because nobody else may do so
