"""The workers of a stage in this process or in child processes: started, and replaced."""

import asyncio
import time
from collections.abc import Callable

from deployments.errors import StartError
from deployments.pipelines.core.items import StageBatch
from deployments.pipelines.core.steps import AVAILABLE_CPUS, Stage
from deployments.pipelines.workers.worker import OnChange, OnEnded, PooledWorker, Workers, logger

#: Time limit of a worker's start.
_START_S = 300.0
#: After this many failed starts in a row, the stage's requests fail.
_FAILED_STARTS = 3
_FIRST_DELAY_S, _MAX_DELAY_S = 0.1, 10.0


class WorkerPool(Workers[PooledWorker]):
    """The workers of a stage, each with those of `cpus` that the fewest others may use."""

    def __init__(
        self,
        stage: Stage,
        on_ended: OnEnded,
        on_change: OnChange,
        kind: "Kind",
    ) -> None:
        super().__init__(stage, on_ended, on_change)
        self.loop = asyncio.get_running_loop()
        self._stage, self._kind, self._ordered = stage, kind, stage.workers
        self._cpus = [AVAILABLE_CPUS] if stage.cpus is None else [[cpu] for cpu in stage.cpus]
        #: Time of each order.
        self._starting: dict[PooledWorker, float] = {}
        self._free: list[PooledWorker] = []
        self._dying: set[PooledWorker] = set()
        self._started: asyncio.Future[None] | None = None
        self._failed_starts = 0
        self._closing = False

    async def start(self) -> None:
        self._started = self.loop.create_future()
        try:
            for _ in range(self._ordered):
                self._start_another()
            await self._started
        except BaseException:
            await self.close()
            raise

    def run(self, batch: StageBatch) -> None:
        self._begin(self._free.pop(), batch)

    def resize(self, count: int) -> None:
        more, self._ordered = count - self._ordered, count
        for _ in range(more):
            self._start_another()
        self._changed()

    def ready(self, worker: PooledWorker) -> None:
        if self._starting.pop(worker, None) is None:
            return  # it was abandoned
        self._failed_starts = 0
        self._free.append(worker)
        if not self._starting and self._started is not None and not self._started.done():
            self._started.set_result(None)
        self._changed()

    def dying(self, worker: PooledWorker) -> None:
        """Send no further batch to a worker; `lost` follows."""
        if worker in self._free:
            self._free.remove(worker)
            self._dying.add(worker)
            self._changed()

    def lost(self, worker: PooledWorker, how: str) -> None:
        worker.end()
        if self._starting.pop(worker, None) is not None:
            self._start_failed(how)
            return
        if worker in self._free:
            self._free.remove(worker)
        elif worker in self._dying:
            self._dying.remove(worker)
        elif worker not in self._busy:
            return
        reason = f"a worker of stage {self.name!r} {how}"
        logger.error("%s; it is replaced", reason)
        self._lose(worker, reason)
        self._start_another()

    def check(self, now_s: float) -> None:
        super().check(now_s)
        for worker, since_s in [*self._starting.items()]:
            if now_s - since_s > _START_S:
                self.lost(worker, f"it took more than {_START_S:g} s")

    async def close(self) -> None:
        self._closing = True
        workers = self._all
        for known in (self._starting, self._free, self._dying, self._busy):
            known.clear()
        await asyncio.gather(*(worker.close() for worker in workers))

    def _worker_free(self, worker: PooledWorker) -> None:
        self._free.append(worker)
        if self._size > self._ordered:
            self._changed()

    @property
    def _size(self) -> int:
        return len(self._free) + len(self._busy) + len(self._starting)

    def _changed(self) -> None:
        while self._free and len(self._free) + len(self._busy) > self._ordered:
            self._free.pop().end()
        self._on_change(self._running, None)

    @property
    def _running(self) -> int:
        return min(self._ordered, len(self._free) + len(self._busy))

    @property
    def _all(self) -> list[PooledWorker]:
        return [*self._starting, *self._free, *self._dying, *self._busy]

    def _start_another(self) -> None:
        # A resize may have made a replacement unnecessary.
        if self._closing or self._size >= self._ordered:
            return
        used = [worker.cpus for worker in self._all]
        worker = self._kind(self, self._stage, min(self._cpus, key=used.count))
        self._starting[worker] = time.monotonic()
        try:
            worker.start()
        except (OSError, RuntimeError) as error:  # the machine has no room for it
            del self._starting[worker]
            self._start_failed(str(error))

    def _start_failed(self, reason: str) -> None:
        """Retry later; during the start of the pipeline, fail."""
        reason = f"stage {self.name!r}: a worker did not start: {reason}"
        if self._started is not None and not self._started.done():
            self._started.set_exception(StartError(reason))
            return
        self._failed_starts += 1
        logger.error("%s", reason)
        if self._failed_starts >= _FAILED_STARTS and not self._running:
            self._on_change(0, reason)
        delay_s = min(_MAX_DELAY_S, _FIRST_DELAY_S * 2.0**self._failed_starts)
        self.loop.call_later(delay_s, self._start_another)


Kind = Callable[[WorkerPool, Stage, list[int]], PooledWorker]
"""The kind of the workers: made for a pool, with a stage's code, on some CPUs."""
