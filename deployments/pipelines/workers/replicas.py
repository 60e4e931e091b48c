"""A stage's workers in separate Ray replicas, from the view of a pipeline on their machine.

Batches go to them over the sockets of `batch_server`, in a hundredth of the time of a call through
Ray's handle. A pipeline on a machine without a replica calls the handle.
"""

import asyncio
import random
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployments.errors import StartError
from deployments.pipelines.core.errors import WorkerLostError
from deployments.pipelines.core.items import BatchFailure, Outcome, StageBatch, WorkerLoss
from deployments.pipelines.core.steps import Stage
from deployments.pipelines.workers.batch_server import RETIRED, SUFFIX, private
from deployments.pipelines.workers.child import BATCH, START
from deployments.pipelines.workers.link import WorkerLink
from deployments.pipelines.workers.worker import OnChange, OnEnded, Workers, logger
from policy.errors import InvalidInputError

#: Time limit for the first replica of a stage, and interval of the search.
_START_S, _FIND_S = 300.0, 0.1
#: After this time without a replica, the stage's requests fail.
_LOST_S = 30.0
_NO_REPLICA, _LOST = "stage {!r}: it has no replica", "a replica of stage {!r} {}"

#: A running replica on this machine has its socket after this time.
_GRACE_S = 1.0

Call = Callable[[list[Any]], Awaitable["list[Any] | BatchFailure"]]
"""Runs the items of a batch on any replica; raises `WorkerLostError` if that one dies."""


@dataclass(frozen=True)
class ReplicaAccess:
    """Access to a stage's replicas: in `folder`; elsewhere by `call`, once `any_runs` returns."""

    folder: Path
    call: Call
    any_runs: Callable[[], Awaitable[Any]]


class _Replica:
    def __init__(self, pool: "ReplicaWorkers", path: Path, connection: socket.socket) -> None:
        self.path = path
        self.ready = self.retired = False
        self._pool = pool
        self.link = WorkerLink(connection, self._on_message, self._on_end)
        try:
            self.link.introduce()
        except OSError:
            self.link.close()
            raise

    def run(self, batch: StageBatch) -> Outcome | None:
        return self.link.run(batch)

    def _on_message(self, kind: int, content: Any) -> None:
        if kind == BATCH:
            self._pool.ended(self, content)
            return
        if kind == START:
            self.ready = True
        else:
            assert kind == RETIRED
            self.retired = True
        self._pool.replica_changed(self)

    def _on_end(self) -> None:
        self._pool.replica_lost(self, "died")


class ReplicaWorkers(Workers[_Replica]):
    """The replicas of one stage; `workers` of it is the most batches on other machines."""

    def __init__(
        self,
        stage: Stage,
        on_ended: OnEnded,
        on_change: OnChange,
        access: ReplicaAccess,
    ) -> None:
        super().__init__(stage, on_ended, on_change)
        self._access, self._most_calls = access, stage.workers
        self._replicas: dict[Path, _Replica] = {}
        self._called: set[asyncio.Task[None]] = set()
        self._remote = False
        self._search: asyncio.Task[None] | None = None
        self._missing_since_s = time.monotonic()

    async def start(self) -> None:
        private(self._access.folder)
        self._search = asyncio.create_task(self._look_elsewhere())
        try:
            async with asyncio.timeout(_START_S):
                while not self._count:
                    self._find()
                    await asyncio.sleep(_FIND_S)
        except TimeoutError:
            raise StartError(_NO_REPLICA.format(self.name)) from None

    def run(self, batch: StageBatch) -> None:
        free = [one for one in self._usable() if one not in self._busy]
        if free:
            self._begin(random.choice(free), batch)
            return
        task = asyncio.create_task(self._call_with(batch))
        self._called.add(task)
        task.add_done_callback(self._called.discard)

    def resize(self, count: int) -> None:
        raise InvalidInputError(f"stage {self.name}: Ray decides how many replicas it has")

    def check(self, now_s: float) -> None:
        super().check(now_s)
        self._find()
        if self._usable() or self._remote:
            self._missing_since_s = now_s
        elif now_s - self._missing_since_s > _LOST_S:
            self._on_change(0, _NO_REPLICA.format(self.name))

    async def close(self) -> None:
        if self._search is not None:
            self._search.cancel()
        for task in self._called:
            task.cancel()
        for replica in self._replicas.values():
            replica.link.close()
        self._replicas.clear()

    def replica_changed(self, replica: _Replica) -> None:
        self._remote = False
        if replica.retired and replica not in self._busy:
            self._leave(replica)
        self._changed()

    def replica_lost(self, replica: _Replica, how: str) -> None:
        self._leave(replica)
        if not replica.retired:
            logger.error(_LOST.format(self.name, how))
        self._lose(replica, _LOST.format(self.name, how))

    def lost(self, worker: _Replica, how: str) -> None:
        # Nobody connects to it again: it fails its health check, too, and Ray replaces it.
        worker.path.unlink(missing_ok=True)
        self.replica_lost(worker, how)

    def _worker_free(self, worker: _Replica) -> None:
        if worker.retired:
            self.replica_changed(worker)

    def _leave(self, replica: _Replica) -> None:
        replica.link.close()
        del self._replicas[replica.path]

    async def _look_elsewhere(self) -> None:
        """Use the replicas on other machines while there are some, but none on this one."""
        while True:
            if not self._remote and not self._usable():
                try:
                    await self._access.any_runs()
                    await asyncio.sleep(_GRACE_S)
                    self._remote = not self._usable()
                    self._changed()
                except Exception:
                    logger.exception("stage %r: its replicas were not found", self.name)
            await asyncio.sleep(_GRACE_S)

    def _find(self) -> None:
        """Connect to new sockets, and remove those of dead replicas."""
        found = {*self._access.folder.glob(f"*{SUFFIX}")}
        for path in found - self._replicas.keys():
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            connection.setblocking(False)
            try:
                connection.connect(str(path))
            except OSError as error:
                connection.close()
                # One that has too many connections to accept is found again.
                if not isinstance(error, BlockingIOError):
                    path.unlink(missing_ok=True)
            else:
                self._replicas[path] = _Replica(self, path, connection)

    def _usable(self) -> list[_Replica]:
        known = self._replicas.values()
        return [one for one in known if one.ready and (not one.retired or one in self._busy)]

    @property
    def _count(self) -> int:
        return len(self._usable()) or (self._most_calls if self._remote else 0)

    def _changed(self) -> None:
        self._on_change(self._count, None)

    async def _call_with(self, batch: StageBatch) -> None:
        outcome: Outcome
        try:
            async with asyncio.timeout(self._hang_after_s):
                outcome = await self._access.call(batch.values)
        except TimeoutError:
            outcome = WorkerLoss(_LOST.format(self.name, self.hang))
        except WorkerLostError as error:
            outcome = WorkerLoss(_LOST.format(self.name, f"died: {error}"))
        except Exception as error:
            outcome = BatchFailure(error)
        self._on_ended(batch, outcome)
