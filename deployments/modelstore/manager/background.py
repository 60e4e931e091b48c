"""Blocking work of the manager, each piece in a thread of its own; it ends in an event."""

import errno
import logging
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence

from deployments.modelstore.core.actions import Action, Copy, Fault, Tier
from deployments.modelstore.core.store_core import StoreCore
from deployments.modelstore.device.tier import DeviceTier
from deployments.modelstore.errors import (
    FetchError,
    OutOfDeviceMemoryError,
    StoreError,
    StoreFullError,
    UnknownModelError,
    UntrustedFileError,
)
from deployments.modelstore.files.digests import checked
from deployments.modelstore.files.disk import Disk
from deployments.modelstore.files.safetensors_header import read_entries
from deployments.modelstore.host_memory import HostMemory, write_at
from deployments.modelstore.manager.shared_files import ClientFile, Identity, SharedFiles
from deployments.modelstore.names import FILES, Blob, ModelName, Origin

logger = logging.getLogger(__name__)

Event = Callable[[], Sequence[Action]]
"""An event for the loop's thread to run; it returns the next actions."""

Identified = Callable[[Blob | StoreError], Sequence[Action]]

_Kind = str | tuple[Tier, Tier]
_Work = tuple[Callable[[], Event], Callable[[Exception], Event]]

#: Pieces of each kind of work, such as copies from the disk; clients may ask for any number.
AT_ONCE = 4
#: Work that reads the remote may hang, so `close` waits only this long for it.
CLOSE_WAIT_S = 1.0
_NO_MEMORY = {errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC}


class Background:
    """Threads that block, so that a hanging remote delays only work that needs it.

    They are daemons: threads of `ThreadPoolExecutor` would keep the process alive while they block.
    `report` is called with each event, from any thread; only events use the core. Once `stopped` is
    set, copies end after the current piece.
    """

    def __init__(
        self,
        core: StoreCore,
        remote: SharedFiles,
        disk: Disk,
        memory: HostMemory,
        device: DeviceTier | None,
        report: Callable[[Event], None],
        stopped: threading.Event,
    ) -> None:
        self._core, self._remote, self._disk = core, remote, disk
        self._memory, self._device = memory, device
        self._report, self._stopped = report, stopped
        self._threads: set[threading.Thread] = set()
        self._identifying: dict[Identity, list[Identified]] = {}
        # Work that waits for a thread, and how much has one, by kind.
        self._waiting: defaultdict[_Kind, deque[_Work]] = defaultdict(deque)
        self._running: Counter[_Kind] = Counter()

    def copy(self, order: Copy, origins: Sequence[Origin]) -> None:
        """Carry out a copy; one from the remote reads the first of `origins` that works."""
        blob, target = order.blob, order.target

        def work() -> Event:
            begin_s = time.monotonic()
            self._copy(order, origins)
            seconds = time.monotonic() - begin_s
            return lambda: self._core.copied(blob, target, seconds)

        def failed(error: Exception) -> Event:
            fault, cause = self._fault_of(order, error)
            return lambda: self._core.copy_failed(blob, target, fault, cause)

        self._start((order.source, target), work, failed)

    def resolve(self, name: ModelName) -> None:
        """Look up a model's files."""

        def failed(error: Exception) -> Event:
            if not isinstance(error, StoreError):
                error = FetchError(f"{name}: {type(error).__name__}: {error}")
            cause = error
            return lambda: self._core.resolve_failed(name, cause)

        self._start("resolve", lambda: self._resolve(name), failed)

    def identify(self, file: ClientFile, then: Identified) -> None:
        """Pass a client's file to `then` as its blob; one thread reads it for all who wait."""
        identity, settled = file.identity, file.settled
        waiting = self._identifying.setdefault(identity, [])
        waiting.append(then)
        if len(waiting) > 1:
            return

        def event(found: Blob | StoreError) -> Event:
            def identified() -> Sequence[Action]:
                if settled and isinstance(found, Blob):
                    self._remote.remember(identity, found)
                waiting = self._identifying.pop(identity)
                return [action for each in waiting for action in each(found)]

            return identified

        self._start(
            "identify",
            lambda: event(file.blob()),
            lambda error: event(
                error if isinstance(error, StoreError) else FetchError(f"the file: {error}")
            ),
        )

    def close(self) -> None:
        """Stop all work after the current piece; work that hangs at the remote is abandoned."""
        self._stopped.set()
        end_s = time.monotonic() + CLOSE_WAIT_S
        for thread in self._threads:
            # Copies use memory that the manager frees next.
            on_machine = thread.name == "store-copy"
            thread.join(None if on_machine else max(0.0, end_s - time.monotonic()))

    def _start(
        self, kind: _Kind, work: Callable[[], Event], failed: Callable[[Exception], Event]
    ) -> None:
        """Run `work` in its turn; report its event or the one that `failed` makes of its error."""
        self._waiting[kind].append((work, failed))
        self._start_next(kind)

    def _start_next(self, kind: _Kind) -> None:
        if not self._waiting[kind] or self._running[kind] >= AT_ONCE:
            return
        self._running[kind] += 1
        work, failed = self._waiting[kind].popleft()

        def ended(event: Event) -> Sequence[Action]:
            self._running[kind] -= 1
            self._start_next(kind)
            return event()

        def run() -> None:
            try:
                event = work()
            except Exception as error:
                event = failed(error)
            self._report(lambda: ended(event))

        self._threads = {thread for thread in self._threads if thread.is_alive()}
        on_machine = isinstance(kind, tuple) and kind[0] is not Tier.REMOTE
        name = "store-copy" if on_machine else "store-fetch"
        thread = threading.Thread(target=run, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the machine cannot start another thread
            event = failed(error)
            self._report(lambda: ended(event))
        else:
            self._threads.add(thread)

    def _copy(self, order: Copy, origins: Sequence[Origin]) -> None:
        blob = order.blob
        if order.target is Tier.DISK:
            self._fetch(origins, lambda parts: self._disk.fetch(blob, parts))
        elif order.target is Tier.DEVICE:
            self._copy_to_device(order)
        elif order.source is Tier.DISK:
            with self._memory.fill(blob) as descriptor:
                self._disk.read(blob, descriptor, self._check_stopped)
        else:
            # A shared file may have any format, which the client reads from its own.
            shared = any(name.framework == FILES for name, _ in origins)
            self._fetch(origins, lambda parts: self._to_memory(blob, parts, any_format=shared))

    def _fault_of(self, order: Copy, error: Exception) -> tuple[Fault, StoreError]:
        """Return what failed; delete a file of the disk that is damaged or cannot be read."""
        from_disk = order.source is Tier.DISK
        if isinstance(error, OutOfDeviceMemoryError):
            return Fault.TARGET, error
        if isinstance(error, StoreError):
            damaged = from_disk and isinstance(error, UntrustedFileError)
            cause, fault = error, Fault.SOURCE if damaged else Fault.OTHER
        elif isinstance(error, OSError):
            # The remote raises `StoreError`, so this is a failure of the disk or of memory.
            cause = FetchError(f"{order.target.name.lower()}: {error.strerror or error}")
            read_failed = from_disk and error.errno not in _NO_MEMORY
            fault = Fault.SOURCE if read_failed else Fault.TARGET
        else:
            return Fault.OTHER, FetchError(f"{type(error).__name__}: {error}")
        if fault is Fault.SOURCE:
            self._disk.drop(order.blob)
        return fault, cause

    def _copy_to_device(self, order: Copy) -> None:
        assert self._device is not None
        if order.source is not Tier.HOST:
            raise StoreFullError(
                f"the device is filled from host memory, whose budget has no room for the "
                f"{order.blob.size_bytes} bytes of a file"
            )
        self._device.fill(order.blob, self._memory.descriptor(order.blob))

    def _fetch(self, origins: Sequence[Origin], take: Callable[[Iterator[bytes]], None]) -> None:
        """Apply `take` to the first origin that still has the blob."""
        first_error: StoreError | None = None
        for name, file in origins:
            try:
                take(self._fetched(name, file))
                return
            except (UnknownModelError, UntrustedFileError) as error:
                first_error = first_error or error
        raise first_error or FetchError("no model contains the file any more")

    def _to_memory(self, blob: Blob, parts: Iterator[bytes], *, any_format: bool) -> None:
        """Copy a blob from the remote straight into memory, bypassing a full disk."""
        begin = 0
        with self._memory.fill(blob) as descriptor:
            for part in checked(blob, parts):
                write_at(descriptor, part, begin)
                begin += len(part)
            if not any_format:
                read_entries(descriptor)

    def _fetched(self, name: ModelName, file: str) -> Iterator[bytes]:
        """Yield a file's bytes; resume a broken download as long as that brings more of it."""
        offset = 0
        while True:
            begin = offset
            try:
                for part in self._remote.read(name, file, offset):
                    self._check_stopped()
                    offset += len(part)
                    yield part
                return
            except FetchError:
                if offset == begin:
                    raise

    def _check_stopped(self) -> None:
        if self._stopped.is_set():
            raise FetchError("the model store was stopped")

    def _resolve(self, name: ModelName) -> Event:
        manifest = self._remote.resolve(name)
        if not self._stopped.is_set():
            try:
                self._disk.save_manifest(name, manifest)
            except OSError as error:  # a full disk is skipped
                logger.warning("%s: its list of files is not kept on the disk: %s", name, error)
        return lambda: self._core.resolved(name, manifest)
