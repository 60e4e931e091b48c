"""A stage's workers in processes: started, fed, and replaced when they die or hang."""

import asyncio
import logging
import socket
import subprocess
import time
from typing import Any

import cloudpickle

from deployments.errors import StartError
from deployments.pipelines.items import Outcome, StageBatch, WorkerLoss
from deployments.pipelines.workers.child import BATCH, START, command
from deployments.pipelines.workers.interface import Listener
from deployments.pipelines.workers.link import WorkerLink
from deployments.pipelines.workers.predictor import Recipe
from deployments.pipelines.workers.restarts import FAILED_STARTS, delay_s
from policy.errors import InvalidInputError

logger = logging.getLogger("sojourn.pipelines")

_CLOSE_S = 2.0
#: A worker that has not started after this time is given up.
_START_S = 300.0
_STANDARD_ERROR = 2


class _Worker:
    """One worker process, as seen from the process that started it.

    Raises
    ------
    OSError
        The machine has no room for it.
    """

    def __init__(self, pool: "ProcessWorkers", cpus: list[int] | None) -> None:
        self.cpus = cpus
        self.ready = False
        self.started_s = time.monotonic()
        self._pool = pool
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.link = WorkerLink(ours, self._on_message, self._on_end)
            arenas = self.link.requests.descriptor, self.link.replies.descriptor
            inherited = [theirs.fileno(), *arenas]
            try:
                self.process = subprocess.Popen(
                    command(inherited),
                    pass_fds=inherited,
                    stdin=subprocess.DEVNULL,
                    # What a stage prints must not mix with the output of this process.
                    stdout=_STANDARD_ERROR,
                )
                self.link.send(START, (pool.recipe, cpus))
            except BaseException:
                self.link.close()  # if there is a process, it ends
                raise

    def _on_message(self, kind: int, content: Any) -> None:
        if kind == BATCH:
            self._pool.ended(*self.link.end_job(content))
        elif content is None:
            self.ready = True
            self._pool.worker_ready()
        else:
            self._pool.worker_failed_to_start(self, content)

    def _on_end(self) -> None:
        self.process.kill()
        code = self.process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit status {code}"
        self._pool.worker_died(self, how)

    def kill(self) -> None:
        """End the process at once."""
        self.link.close()
        self.process.kill()
        self.process.wait()


class ProcessWorkers:
    """The worker processes of one stage.

    Parameters
    ----------
    name : str
        The stage's name, for messages.
    recipe : Recipe
        What each worker constructs.
    cpus : list of (list of int or None)
        For each worker, the CPUs that it is pinned to; None: any.
    hang_after_s : float
        A worker that takes longer for one batch is replaced.
    listener : Listener
    """

    def __init__(
        self,
        name: str,
        recipe: Recipe,
        cpus: list[list[int] | None],
        hang_after_s: float,
        listener: Listener,
    ) -> None:
        self.name = name
        try:
            # By value where it must be: a class of a notebook, or of the script that is running.
            self.recipe = cloudpickle.dumps(recipe)
        except Exception as error:
            raise StartError(f"stage {name!r}: cannot be sent to a process: {error}") from error
        self.loop = asyncio.get_running_loop()
        self._cpus = cpus
        self._pinned = any(own is not None for own in cpus)
        self._hang_after_s = hang_after_s
        self._listener = listener
        self._workers: list[_Worker] = []
        self._failed_starts = 0
        self._timers: set[asyncio.TimerHandle] = set()
        self._started: asyncio.Future[None] | None = None
        self._closing = False

    async def start(self) -> None:
        """Start all workers; return when each can take a batch.

        Raises
        ------
        StartError
            A worker did not start; the message says why.
        """
        self._started = self.loop.create_future()
        try:
            for cpus in self._cpus:
                self._start_another(cpus)
            await self._started
        except BaseException:
            await self.close()
            raise

    def run(self, batch: StageBatch) -> None:
        """Run a batch on a free worker. The caller knows that there is one."""
        links = (worker.link for worker in self._workers if worker.ready)
        link = next(link for link in links if link.job is None)
        outcome = link.run(batch)
        if outcome is not None:
            self.ended(batch, outcome)

    def resize(self, count: int) -> None:
        """Start more workers, or let some end after their batches.

        Raises
        ------
        InvalidInputError
            The workers are pinned to CPUs.
        """
        if self._pinned and count != len(self._cpus):
            raise InvalidInputError(f"stage {self.name}: its workers are pinned to CPUs")
        more = count - len(self._cpus)
        self._cpus = [None] * count
        for _ in range(more):
            self._start_another(None)
        self._retire()
        self._listener.workers_changed(self._count_ready(), None)

    def _retire(self) -> None:
        """Let as many workers end as are too many, if they have no batch."""
        for worker in [worker for worker in self._workers if worker.link.job is None]:
            if len(self._workers) <= len(self._cpus):
                break
            self._workers.remove(worker)
            worker.kill()

    def ended(self, batch: StageBatch, outcome: Outcome) -> None:
        """Pass on the outcome of a batch."""
        if len(self._workers) > len(self._cpus):
            self._retire()
        self._listener.batch_ended(batch, outcome)

    def worker_ready(self) -> None:
        """Count a worker that has started."""
        self._failed_starts = 0
        ready = self._count_ready()
        if self._started is not None and ready == len(self._cpus) and not self._started.done():
            self._started.set_result(None)
        self._listener.workers_changed(ready, None)

    def worker_failed_to_start(self, worker: _Worker, reason: str) -> None:
        """Give up a worker whose code did not construct, and try again later."""
        worker.kill()
        self._workers.remove(worker)
        self._start_failed(reason, worker.cpus)

    def _start_failed(self, reason: str, cpus: list[int] | None) -> None:
        reason = f"stage {self.name!r}: a worker did not start: {reason}"
        if self._started is not None and not self._started.done():
            self._started.set_exception(StartError(reason))
            return
        self._failed_starts += 1
        logger.error("%s", reason)
        if self._failed_starts >= FAILED_STARTS and not self._count_ready():
            self._listener.workers_changed(0, reason)
        self._later(delay_s(self._failed_starts), cpus)

    def worker_died(self, worker: _Worker, how: str) -> None:
        """Replace a worker that ended; its batch is told."""
        if not worker.ready:
            self.worker_failed_to_start(worker, f"it {how}")
            return
        reason = f"a worker of stage {self.name!r} {how}"
        logger.error("%s; it is replaced", reason)
        worker.kill()
        self._workers.remove(worker)
        self._listener.workers_changed(self._count_ready(), None)
        if worker.link.job is not None:
            self.ended(worker.link.job.batch, WorkerLoss(reason))
        self._start_another(worker.cpus)

    def check(self, now_s: float) -> None:
        """Replace the workers that hang, in a batch or while they start."""
        for worker in list(self._workers):
            if not worker.ready and now_s - worker.started_s > _START_S:
                self.worker_failed_to_start(worker, f"it took more than {_START_S:g} s")
            elif worker.link.hangs(now_s, self._hang_after_s):
                self.worker_died(worker, f"took more than {self._hang_after_s:g} s for a batch")

    def _later(self, after_s: float, cpus: list[int] | None) -> None:
        def start() -> None:
            self._timers.discard(timer)
            self._start_another(cpus)

        timer = self.loop.call_later(after_s, start)
        self._timers.add(timer)

    def _start_another(self, cpus: list[int] | None) -> None:
        # A resize may have made one that was to be replaced too many.
        if self._closing or len(self._workers) >= len(self._cpus):
            return
        try:
            self._workers.append(_Worker(self, cpus))
        except OSError as error:
            self._start_failed(str(error), cpus)

    def _count_ready(self) -> int:
        return min(len(self._cpus), sum([worker.ready for worker in self._workers]))

    async def close(self) -> None:
        """End all workers; those that run a batch get two seconds to end it."""
        self._closing = True
        for timer in self._timers:
            timer.cancel()
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.link.close()
        deadline_s = time.monotonic() + _CLOSE_S
        for worker in workers:
            if not worker.ready:
                worker.process.kill()
            while worker.process.poll() is None and time.monotonic() < deadline_s:
                await asyncio.sleep(0.005)
            worker.kill()
