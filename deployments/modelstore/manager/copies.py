"""Copies between tiers, as functions for the manager's threads."""

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence

from deployments.modelstore.core.actions import Copy, Fault, Tier
from deployments.modelstore.device.tier import DeviceTier
from deployments.modelstore.errors import (
    FetchError,
    OutOfDeviceMemoryError,
    StoreError,
    StoreFullError,
    UnknownModelError,
    UntrustedFileError,
)
from deployments.modelstore.files.digests import StreamCheck
from deployments.modelstore.files.disk import Disk
from deployments.modelstore.files.remote import Remote
from deployments.modelstore.files.safetensors_header import header_end, read_header
from deployments.modelstore.host_memory import HostMemory, write_at
from deployments.modelstore.names import Blob, ModelName, Origin

_NO_MEMORY = {errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC}


class CopyError(Exception):
    def __init__(self, fault: Fault, error: StoreError) -> None:
        super().__init__(str(error))
        self.fault, self.error = fault, error


class Copier:
    """Performs the copies that the core orders.

    Its methods block and may run in several threads. Once `stopped` is set, copies end after the
    current piece.
    """

    def __init__(
        self,
        remote: Remote,
        disk: Disk,
        memory: HostMemory,
        device: DeviceTier | None = None,
        stopped: threading.Event | None = None,
    ) -> None:
        self._stopped = stopped or threading.Event()
        self._remote, self._disk, self._memory, self._device = remote, disk, memory, device

    def copy(self, order: Copy, origins: Sequence[Origin]) -> None:
        """Carry out a copy, or raise `CopyError`."""
        blob = order.blob
        try:
            if order.target is Tier.DISK:
                self._fetch(origins, lambda parts: self._disk.fetch(blob, parts))
            elif order.target is Tier.DEVICE:
                self._copy_to_device(order)
            elif self._memory.take_over(blob):
                pass
            elif order.source is Tier.DISK:
                with self._memory.fill(blob) as descriptor:
                    self._disk.read(blob, descriptor, self._check_stopped)
            else:
                self._fetch(origins, lambda parts: self._to_memory(blob, parts))
        except OutOfDeviceMemoryError as error:
            raise CopyError(Fault.TARGET, error) from error
        except StoreError as error:
            if order.source is Tier.DISK and isinstance(error, UntrustedFileError):
                self._disk.drop(blob)
                raise CopyError(Fault.SOURCE, error) from error
            raise CopyError(Fault.OTHER, error) from error
        except OSError as error:
            # The remote raises `StoreError`, so this is a failure of the disk or of memory.
            read_failed = order.source is Tier.DISK and error.errno not in _NO_MEMORY
            failed = FetchError(f"{order.target.name.lower()}: {error.strerror or error}")
            if read_failed:
                self._disk.drop(blob)
            fault = Fault.SOURCE if read_failed else Fault.TARGET
            raise CopyError(fault, failed) from error

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

    def _to_memory(self, blob: Blob, parts: Iterator[bytes]) -> None:
        """Copy a blob from the remote straight into memory, bypassing a full disk."""
        check = StreamCheck(blob)
        with self._memory.fill(blob) as descriptor:
            for part in parts:
                begin = check.done_bytes
                check.update(part)
                write_at(descriptor, part, begin)
            check.finish()
            end = header_end(os.pread(descriptor, 8, 0), blob.size_bytes)
            read_header(os.pread(descriptor, end, 0), blob.size_bytes)

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
