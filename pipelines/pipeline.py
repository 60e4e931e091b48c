"""A pipeline on an event loop: `await pipeline.predict(x)`, and streams with bounded memory.

::

    async with Pipeline([Stage(Scale, cpus=[0, 1]), Stage(Shift, place="loop")]) as pipeline:
        y = await pipeline.predict(3)
        async for y in pipeline.stream(range(1000)):
            ...
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from deployments.errors import BusyError
from pipelines.graph import compile_steps
from pipelines.items import Flow, Outcome
from pipelines.pipeline_core import PipelineCore
from pipelines.policies import solve_stage_table
from pipelines.stage_core import StageBatch, StageCore
from pipelines.steps import Stage, Step
from pipelines.workers.in_process import LoopWorker, ThreadWorkers
from pipelines.workers.interface import Workers
from pipelines.workers.predictor import Recipe
from pipelines.workers.processes import ProcessWorkers
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective

logger = logging.getLogger("sojourn.pipelines")

#: How often workers are checked for hanging.
_CHECK_S = 0.2
MAX_PENDING = 1024
#: How long each batch size of a stage with ``policy="auto"`` is measured.
_MEASURE_S = 0.1


class _StageListener:
    """Passes what a stage's workers say to the pipeline."""

    def __init__(self, pipeline: "Pipeline", number: int) -> None:
        self._pipeline, self._number = pipeline, number

    def batch_ended(self, batch: StageBatch, outcome: Outcome) -> None:
        self._pipeline._batch_ended(self._number, batch, outcome)

    def workers_changed(self, workers: int, problem: str | None) -> None:
        self._pipeline._workers_changed(self._number, workers, problem)


class Pipeline:
    """Stages with their own workers and batches, used as one function.

    Use it as an async context manager, or call `start` and `close`.

    Parameters
    ----------
    steps : sequence of steps
        `pipelines.steps` says what a step is.
    sla : ServiceLevelObjective, optional
        Every request that cannot be answered within its response time is refused, or given up.
    max_pending : int
        The most requests in the pipeline; more are refused.

    Attributes
    ----------
    core : PipelineCore
        The queues and counts.

    Raises
    ------
    InvalidInputError
        The steps are not a pipeline.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        sla: ServiceLevelObjective | None = None,
        max_pending: int = MAX_PENDING,
    ) -> None:
        if max_pending < 1:
            raise InvalidInputError(f"max_pending: must be at least 1, not {max_pending}")
        graph = compile_steps(steps)
        self.stages = graph.stages
        self.sla = sla
        cores = [_stage_core(stage) for stage in graph.stages]
        self.core = PipelineCore(graph, cores, max_pending)
        self._workers: list[Workers] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s: float | None = None
        self._running = self._pumping = self._pump_due = False
        self._room: deque[asyncio.Future[None]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: asyncio.Event | None = None

    async def __aenter__(self) -> Self:
        """Start the pipeline."""
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the pipeline."""
        await self.close()

    async def start(self) -> None:
        """Start all workers; return when each can take a batch.

        Raises
        ------
        InvalidInputError
            It has been started before.
        StartError
            A worker did not start; the message says which and why.
        StageError
            A stage with ``policy="auto"`` failed on its example.
        """
        if self._workers:
            raise InvalidInputError("pipeline: it has been started before")
        self._loop = asyncio.get_running_loop()
        for number, stage in enumerate(self.stages):
            if stage.policy == "auto" and stage.profile is None:
                self.stages[number] = await _with_profile(stage)
                profile = self.stages[number].batch_profile
                assert profile is not None
                self.core.stages[number].state_latency(profile.latency_ms.tolist())
        self.core.refresh(time.monotonic())
        self._running = True
        try:
            for number, stage in enumerate(self.stages):
                self._workers.append(self._make_workers(number, stage))
            starts = [self._loop.create_task(workers.start()) for workers in self._workers]
            try:
                await asyncio.gather(*starts)
            finally:
                for start in starts:
                    start.cancel()
                await asyncio.wait(starts)
        except BaseException:
            await self.close()
            raise
        for coroutine in (
            self._check_forever(),
            *(self._solve(n, stage) for n, stage in enumerate(self.stages)),
        ):
            task = self._loop.create_task(coroutine)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _make_workers(self, number: int, stage: Stage) -> Workers:
        listener = _StageListener(self, number)
        recipe = Recipe(stage.code, dict(stage.options), stage.device, stage.batch_size is not None)
        if stage.place == "loop":
            return LoopWorker(stage.name, recipe, listener)
        if stage.place == "thread":
            return ThreadWorkers(stage.name, recipe, stage.workers, stage.hang_after_s, listener)
        cpus = [None] * stage.workers if stage.cpus is None else [[cpu] for cpu in stage.cpus]
        return ProcessWorkers(stage.name, recipe, [*cpus], stage.hang_after_s, listener)

    async def close(self) -> None:
        """End all workers. Requests that are not answered fail."""
        self._running = False
        for task in self._tasks:
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        for flow in [*self.core.open.values()]:
            self.core.cancel(flow)
            _set_exception(flow, BusyError("the pipeline is closed"))
        for waiter in self._room:
            waiter.cancel()
        await asyncio.gather(*(workers.close() for workers in self._workers))

    def resize(self, name: str, workers: int) -> None:
        """Change the number of workers of a running stage; no request is lost.

        Parameters
        ----------
        name : str
            The stage.
        workers : int
            At least 1. More are started; fewer end, those with a batch after it.

        Raises
        ------
        InvalidInputError
            There is no such stage, the number is below 1, or the stage has one worker on the event
            loop or workers pinned to CPUs.
        """
        numbers = {stage.name: number for number, stage in enumerate(self.stages)}
        if name not in numbers:
            raise InvalidInputError(f"stage {name!r}: the stages are {', '.join(numbers)}")
        if workers < 1:
            raise InvalidInputError(f"stage {name}: workers must be at least 1, not {workers}")
        self._workers[numbers[name]].resize(workers)

    async def drain(self) -> None:
        """Return when all admitted requests are answered."""
        if self.core.open:
            self._idle = self._idle or asyncio.Event()
            await self._idle.wait()

    def submit(
        self,
        value: Any,
        *,
        timeout_ms: float | None = None,
        arrival_s: float | None = None,
        record_times: bool = False,
    ) -> Flow:
        """Admit a request; its ``content`` is the future of its result.

        Parameters
        ----------
        value : Any
            The input of the first stage.
        timeout_ms : float, optional
            The answer is useless later than this after the arrival. The SLA bounds it, too.
        arrival_s : float, optional
            When it arrived, by `time.monotonic`; by default now.
        record_times : bool
            Whether the flow records the time in each stage.

        Raises
        ------
        RequestError
            As `PipelineCore.submit`.
        """
        if not self._running:
            raise BusyError("the pipeline is not running")
        now_s = time.monotonic()
        within_ms = math.inf if timeout_ms is None else timeout_ms
        if self.sla is not None:
            within_ms = min(within_ms, self.sla.response_time_ms)
        deadline_s = (now_s if arrival_s is None else arrival_s) + 1e-3 * within_ms
        future: asyncio.Future[Any] = self._loop.create_future()
        flow = self.core.submit(now_s, value, deadline_s, future, record_times)
        if within_ms < math.inf:
            timer = self._loop.call_later(deadline_s - now_s, self._expire, flow)
            future.add_done_callback(lambda _: timer.cancel())
        # Requests of the same turn of the event loop can share a batch.
        if not self._pump_due:
            self._pump_due = True
            self._loop.call_soon(self._pump_once)
        return flow

    async def predict(self, value: Any, *, timeout_ms: float | None = None) -> Any:
        """Return the pipeline's result for one value.

        Parameters
        ----------
        value : Any
            The input of the first stage.
        timeout_ms : float, optional
            The answer is useless later than this.

        Raises
        ------
        StageError
            A stage failed on this value; it has the name of the stage and the cause.
        BusyError
            The pipeline has no room, or cannot answer in time.
        DeviceError
            A stage has no worker, and cannot start one.
        DeadlineError
            The deadline passed, or can no longer be met.
        """
        return await self.result(self.submit(value, timeout_ms=timeout_ms))

    async def result(self, flow: Flow) -> Any:
        """Wait for the result of an admitted request; if cancelled, give the request up."""
        try:
            return await flow.content
        except asyncio.CancelledError:
            self.give_up(flow)
            raise

    def give_up(self, flow: Flow) -> None:
        """Give up a request, if it has not ended: nobody waits for its result."""
        if not flow.done:
            self.core.cancel(flow)
            flow.content.cancel()
            self._wake_streams()
            self._pump()

    async def stream(
        self,
        values: Iterable[Any] | AsyncIterable[Any],
        *,
        in_flight: int | None = None,
        raise_errors: bool = False,
    ) -> AsyncIterator[Any]:
        """Yield the results of many values in their order, with bounded memory.

        Values are taken as room becomes free, so other requests are served meanwhile, and the SLA
        does not apply.

        Parameters
        ----------
        values : iterable or async iterable
            An exception among them is not sent: it takes its place among the results.
        in_flight : int, optional
            The most values in the pipeline or waiting to be yielded; by default half of the
            pipeline's room.
        raise_errors : bool
            Whether the first error ends the stream; otherwise it is yielded in its place.

        Yields
        ------
        Any
            A result, or the error of that value, mostly a `RequestError`.
        """
        limit = max(1, self.core.max_pending // 2) if in_flight is None else in_flight
        if limit < 1:
            raise InvalidInputError(f"in_flight: must be at least 1, not {in_flight}")
        window: deque[Flow] = deque()
        iterator = aiter(values) if isinstance(values, AsyncIterable) else _async(values)
        try:
            async for value in iterator:
                while len(window) >= limit or (window and window[0].content.done()):
                    yield await _outcome(window.popleft(), raise_errors)
                if isinstance(value, Exception):
                    window.append(self._failed(value))
                else:
                    window.append(await self._submit_when_room(value))
            while window:
                yield await _outcome(window.popleft(), raise_errors)
        finally:
            for flow in window:
                self.give_up(flow)

    def _failed(self, error: Exception) -> Flow:
        """Return a request that has failed before it was sent."""
        now_s = time.monotonic()
        flow = Flow(-1, now_s, content=self._loop.create_future())
        flow.done = True
        _set_exception(flow, error)
        return flow

    async def _submit_when_room(self, value: Any) -> Flow:
        while len(self.core.open) >= self.core.max_pending:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._room.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                self._wake_streams()  # this one may have been woken and does not need it
                raise
        if not self._running:
            raise BusyError("the pipeline is not running")
        flow = self.core.submit(time.monotonic(), value, content=self._loop.create_future())
        if not self._pump_due:
            self._pump_due = True
            self._loop.call_soon(self._pump_once)
        return flow

    def _expire(self, flow: Flow) -> None:
        self.core.expire(flow)
        self._tell_ended()
        self._pump()

    def _batch_ended(self, number: int, batch: StageBatch, outcome: Outcome) -> None:
        self.core.batch_ended(time.monotonic(), number, batch, outcome)
        self._pump()

    def _workers_changed(self, number: int, workers: int, problem: str | None) -> None:
        stage = self.core.stages[number]
        stage.workers = workers
        if problem is None:
            if workers:
                stage.lost = None
        else:
            self.core.lose_stage(number, problem)
        self.core.touch(number)
        self._pump()

    def _pump_once(self) -> None:
        self._pump_due = False
        self._pump()

    def _pump(self) -> None:
        """Start what can start, and answer what has ended."""
        if self._pumping or not self._running:
            return  # a worker on the event loop has ended its batch: the loop below goes on
        self._pumping = True
        try:
            while batches := self.core.next_batches(time.monotonic()):
                for number, batch in batches:
                    self._workers[number].run(batch)
        finally:
            self._pumping = False
        self._tell_ended()
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

    def _tell_ended(self) -> None:
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
                _set_exception(flow, flow.error)
        self._wake_streams()
        if self._idle is not None and not self.core.open:
            self._idle.set()
            self._idle = None

    def _wake_streams(self) -> None:
        room = self.core.max_pending - len(self.core.open)
        while self._room and room > 0:
            waiter = self._room.popleft()
            if not waiter.done():
                waiter.set_result(None)
                room -= 1

    async def _check_forever(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_S)
            for workers in self._workers:
                workers.check(time.monotonic())
            self.core.refresh(time.monotonic())

    async def _solve(self, number: int, stage: Stage) -> None:
        """Solve the policy table of a stage in a thread, and put it into force."""
        if stage.policy not in ("smdp", "auto"):
            return
        try:
            table = await asyncio.to_thread(solve_stage_table, stage)
        except Exception:
            logger.exception("stage %r keeps its first policy: no table was found", stage.name)
            return
        self.core.stages[number].use(table)
        self.core.touch(number)
        self._pump()


async def _with_profile(stage: Stage) -> Stage:
    """Return the stage with its measured profile."""
    from pipelines.planning.profiling import measure_stage  # it measures with a pipeline

    profile, _ = await measure_stage(stage, stage.example, _MEASURE_S)
    return replace(stage, profile=profile)


def _stage_core(stage: Stage) -> StageCore:
    profile = stage.batch_profile
    latency_ms = None if profile is None else profile.latency_ms.tolist()
    return StageCore(stage.name, stage.first_policy(), 0, latency_ms)


def _set_exception(flow: Flow, error: Exception) -> None:
    if not flow.content.done():
        flow.content.set_exception(error)
        flow.content.exception()  # asked for: nobody may be left to do so


async def _async(values: Iterable[Any]) -> AsyncIterator[Any]:
    for value in values:
        yield value


async def _outcome(flow: Flow, raise_errors: bool) -> Any:
    try:
        return await flow.content
    except Exception as error:
        if raise_errors:
            raise
        return error
