"""Blocking work of the manager in other threads; each piece ends in an event for the core."""

import logging
import threading
import time
from collections.abc import Callable, Sequence

from deployments.modelstore.core.actions import Action, Copy, Fault, Tier
from deployments.modelstore.core.store_core import StoreCore
from deployments.modelstore.errors import FetchError, StoreError
from deployments.modelstore.files.disk import Disk
from deployments.modelstore.files.remote import Remote, resolve
from deployments.modelstore.manager.copies import Copier, CopyError
from deployments.modelstore.manager.workers import Workers
from deployments.modelstore.names import ModelName, Origin

logger = logging.getLogger(__name__)

Event = Callable[[], Sequence[Action]]
"""An event for the loop's thread to run; it returns the next actions."""

#: Clients may request any number of unknown names.
RESOLVES_AT_ONCE = 8
#: Work that reads the remote may hang, so `close` waits only this long for it.
CLOSE_WAIT_S = 1.0
#: The core bounds the copies between two tiers; a tier is copied to at most this many others.
_TARGETS = 3


class Background:
    """Threads for each kind of work, so that a hanging remote delays only work that needs it.

    Parameters
    ----------
    core : StoreCore
        Only the events use it.
    remote : Remote
    disk : Disk
    copier : Copier
    copies_at_once : int
        Copies that may run at the same time from one tier to another.
    report : callable
        Called with each event, from any thread.
    stopped : Event
        Set to end the work; `copier` checks it, too.
    """

    def __init__(
        self,
        core: StoreCore,
        remote: Remote,
        disk: Disk,
        copier: Copier,
        copies_at_once: int,
        report: Callable[[Event], None],
        stopped: threading.Event,
    ) -> None:
        self._core, self._remote, self._disk, self._copier = core, remote, disk, copier
        self._report, self._stopped = report, stopped
        self._resolves = Workers("store-resolve", RESOLVES_AT_ONCE, report)
        self._fetches = Workers("store-fetch", _TARGETS * copies_at_once, report)
        self._copies = Workers("store-copy", _TARGETS * copies_at_once, report)

    def copy(self, order: Copy, origins: Sequence[Origin]) -> None:
        """Carry out a copy; one from the remote reads the first of `origins` that works."""
        workers = self._fetches if order.source is Tier.REMOTE else self._copies
        workers.submit(
            lambda: self._copy(order, origins), lambda error: self._copy_failed(order, error)
        )

    def resolve(self, name: ModelName) -> None:
        """Look up the files of a model."""
        self._resolves.submit(
            lambda: self._resolve(name), lambda error: self._resolve_failed(name, error)
        )

    def close(self) -> None:
        """Stop all work after the current piece; work that hangs at the remote is abandoned."""
        self._stopped.set()
        kinds = (self._copies, self._fetches, self._resolves)
        for workers in kinds:
            workers.stop()
        self._copies.join()  # the threads use memory that the manager frees next
        end_s = time.monotonic() + CLOSE_WAIT_S
        for workers in kinds:
            workers.join(end_s)

    def _copy(self, order: Copy, origins: Sequence[Origin]) -> Event:
        blob, target = order.blob, order.target
        begin_s = time.monotonic()

        def progress(done_bytes: int) -> None:
            self._report(lambda: self._core.copy_progress(blob, target, done_bytes))

        self._copier.copy(order, origins, progress)
        seconds = time.monotonic() - begin_s
        return lambda: self._core.copied(blob, target, seconds)

    def _copy_failed(self, order: Copy, error: Exception) -> Event:
        if not isinstance(error, CopyError):
            error = CopyError(Fault.OTHER, FetchError(f"{type(error).__name__}: {error}"))
        fault, cause = error.fault, error.error
        return lambda: self._core.copy_failed(order.blob, order.target, fault, cause)

    def _resolve(self, name: ModelName) -> Event:
        manifest = resolve(self._remote, name)
        if not self._stopped.is_set():
            try:
                self._disk.save_manifest(name, manifest)
            except OSError as error:  # a full disk is skipped
                logger.warning("%s: its list of files is not kept on the disk: %s", name, error)
        return lambda: self._core.resolved(name, manifest)

    def _resolve_failed(self, name: ModelName, error: Exception) -> Event:
        if not isinstance(error, StoreError):
            error = FetchError(f"{name}: {type(error).__name__}: {error}")
        failure = error
        return lambda: self._core.resolve_failed(name, failure)
