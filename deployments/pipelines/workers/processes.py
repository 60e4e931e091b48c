"""A stage's worker in a child process."""

import asyncio
import contextlib
import socket
import subprocess
import threading
import time
from typing import Any

import cloudpickle

from deployments.pipelines.core.items import Outcome, StageBatch
from deployments.pipelines.core.steps import Stage
from deployments.pipelines.workers.child import BATCH, START, command
from deployments.pipelines.workers.link import WorkerLink
from deployments.pipelines.workers.pool import WorkerPool

#: Time for a closing worker to end its batch.
_CLOSE_S = 2.0
#: A process whose socket has ended has its exit status within this time.
_STATUS_S = 0.1
_STANDARD_ERROR = 2


class ProcessWorker:
    def __init__(self, pool: WorkerPool, stage: Stage, cpus: list[int]) -> None:
        self.cpus = cpus
        self._pool, self._stage = pool, stage
        self._ready = False

    def start(self) -> None:
        try:
            # By value if necessary: a class of a notebook, or of the running script.
            pickled = cloudpickle.dumps(self._stage)
        except Exception as error:
            raise RuntimeError(f"its code cannot be sent to a process: {error}") from error
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._link = WorkerLink(ours, self._on_message, self._on_end)
            arenas = self._link.requests.descriptor, self._link.replies.descriptor
            inherited = [theirs.fileno(), *arenas]
            try:
                self.process = subprocess.Popen(
                    command(inherited),
                    pass_fds=inherited,
                    stdin=subprocess.DEVNULL,
                    # A stage's output must not mix with the output of this process.
                    stdout=_STANDARD_ERROR,
                )
                self._link.send(START, (pickled, self.cpus))
            except BaseException:
                self._link.close()  # the process, if any, ends
                raise

    def run(self, batch: StageBatch) -> Outcome | None:
        return self._link.run(batch)

    def end(self) -> None:
        """Kill the process. It may end slowly, so a thread reaps it."""
        self._link.close()
        self.process.kill()
        if self.process.poll() is None:
            threading.Thread(target=self.process.wait, daemon=True).start()

    async def close(self) -> None:
        self._link.close()
        if not self._ready:
            self.process.kill()
        deadline_s = time.monotonic() + _CLOSE_S
        while self.process.poll() is None and time.monotonic() < deadline_s:
            await asyncio.sleep(0.005)
        self.end()

    def _on_message(self, kind: int, content: Any) -> None:
        if kind == BATCH:
            self._pool.ended(self, content)
        elif content is None:
            self._ready = True
            self._pool.ready(self)
        else:
            self._pool.lost(self, content)

    def _on_end(self) -> None:
        """Report the exit status, which the kernel may have only in a moment."""
        self._link.stop_reading()
        self.process.kill()
        self._pool.dying(self)

        def reap() -> None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_STATUS_S)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._pool.loop.call_soon_threadsafe(self._report_end)

        threading.Thread(target=reap, daemon=True).start()

    def _report_end(self) -> None:
        code = self.process.returncode
        how = "closed its connection"
        if code is not None:
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit status {code}"
        self._pool.lost(self, how if self._ready else f"it {how}")
