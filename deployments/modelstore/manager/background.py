"""Blocking work of the manager, each piece in a thread of its own; it ends in an event."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from deployments.modelstore.core.actions import Action, Copy, Fault, Tier
from deployments.modelstore.core.store_core import StoreCore
from deployments.modelstore.errors import FetchError, StoreError
from deployments.modelstore.files.disk import Disk
from deployments.modelstore.files.remote import Remote, resolve
from deployments.modelstore.manager.copies import Copier, CopyError
from deployments.modelstore.names import ModelName, Origin

logger = logging.getLogger(__name__)

Event = Callable[[], Sequence[Action]]
"""An event for the loop's thread to run; it returns the next actions."""

#: Clients may request any number of unknown names. The core bounds the copies.
RESOLVES_AT_ONCE = 8
#: Work that reads the remote may hang, so `close` waits only this long for it.
CLOSE_WAIT_S = 1.0


class Background:
    """Threads that block, so that a hanging remote delays only work that needs it.

    They are daemons: threads of `ThreadPoolExecutor` would keep the process alive while they block.
    `report` is called with each event, from any thread; only events use the core.
    """

    def __init__(
        self,
        core: StoreCore,
        remote: Remote,
        disk: Disk,
        copier: Copier,
        report: Callable[[Event], None],
        stopped: threading.Event,
    ) -> None:
        self._core, self._remote, self._disk, self._copier = core, remote, disk, copier
        self._report, self._stopped = report, stopped
        self._threads: set[threading.Thread] = set()
        self._unresolved: deque[ModelName] = deque()
        self._resolving = 0

    def copy(self, order: Copy, origins: Sequence[Origin]) -> None:
        """Carry out a copy; one from the remote reads the first of `origins` that works."""
        self._start(
            "store-fetch" if order.source is Tier.REMOTE else "store-copy",
            lambda: self._copy(order, origins),
            lambda error: self._copy_failed(order, error),
        )

    def resolve(self, name: ModelName) -> None:
        self._unresolved.append(name)
        self._resolve_next()

    def close(self) -> None:
        """Stop all work after the current piece; work that hangs at the remote is abandoned."""
        self._stopped.set()
        end_s = time.monotonic() + CLOSE_WAIT_S
        for thread in self._threads:
            # Copies use memory that the manager frees next.
            on_machine = thread.name == "store-copy"
            thread.join(None if on_machine else max(0.0, end_s - time.monotonic()))

    def _start(
        self, name: str, work: Callable[[], Event], failed: Callable[[Exception], Event]
    ) -> None:
        """Run `work`, and report its event or the one that `failed` makes of its error."""

        def run() -> None:
            try:
                event = work()
            except Exception as error:
                event = failed(error)
            self._report(event)

        self._threads = {thread for thread in self._threads if thread.is_alive()}
        thread = threading.Thread(target=run, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the machine cannot start another thread
            self._report(failed(error))
        else:
            self._threads.add(thread)

    def _copy(self, order: Copy, origins: Sequence[Origin]) -> Event:
        blob, target = order.blob, order.target
        begin_s = time.monotonic()
        self._copier.copy(order, origins)
        seconds = time.monotonic() - begin_s
        return lambda: self._core.copied(blob, target, seconds)

    def _copy_failed(self, order: Copy, error: Exception) -> Event:
        if not isinstance(error, CopyError):
            error = CopyError(Fault.OTHER, FetchError(f"{type(error).__name__}: {error}"))
        fault, cause = error.fault, error.error
        return lambda: self._core.copy_failed(order.blob, order.target, fault, cause)

    def _resolve_next(self) -> None:
        if self._unresolved and self._resolving < RESOLVES_AT_ONCE:
            self._resolving += 1
            name = self._unresolved.popleft()
            self._start(
                "store-resolve",
                lambda: self._resolve(name),
                lambda error: self._resolve_failed(name, error),
            )

    def _resolved(self) -> None:
        self._resolving -= 1
        self._resolve_next()

    def _resolve(self, name: ModelName) -> Event:
        manifest = resolve(self._remote, name)
        if not self._stopped.is_set():
            try:
                self._disk.save_manifest(name, manifest)
            except OSError as error:  # a full disk is skipped
                logger.warning("%s: its list of files is not kept on the disk: %s", name, error)

        def event() -> Sequence[Action]:
            self._resolved()
            return self._core.resolved(name, manifest)

        return event

    def _resolve_failed(self, name: ModelName, error: Exception) -> Event:
        if not isinstance(error, StoreError):
            error = FetchError(f"{name}: {type(error).__name__}: {error}")
        failure = error

        def event() -> Sequence[Action]:
            self._resolved()
            return self._core.resolve_failed(name, failure)

        return event
