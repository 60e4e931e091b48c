"""The manager's side of the device tier: it runs the holder and keeps its exports."""

import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any

from deployments.modelstore import wire
from deployments.modelstore.device.driver import Export
from deployments.modelstore.errors import FetchError, StoreError
from deployments.modelstore.names import Blob, Manifest

#: Memory is shared in pages of this size, so each blob takes whole pages.
PAGE_BYTES = 2 << 20


class _HolderDiedError(FetchError):
    """The holder's process ended during a request."""


class DeviceTier:
    """The blobs in a device's memory, by digest.

    `fault` says why the device cannot be used; `name` names it in all processes of the machine.
    """

    def __init__(self, device: str, driver: str) -> None:
        self._device, self._driver = device, driver
        self._exports: dict[str, Export] = {}
        # One copy at a time: it takes the whole bus.
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self.fault: str | None = None
        self.name: str | None = None

    def start(self) -> None:
        """Start the first holder; set `fault` if it cannot use the device."""
        try:
            self._start_holder()
        except (StoreError, OSError) as error:
            self.fault = str(error)

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "fault": self.fault,
            "holder_pid": None if self._process is None else self._process.pid,
        }

    def fill(self, blob: Blob, descriptor: int) -> None:
        """Copy a blob from sealed host memory to the device; restart a holder that dies, once."""
        with self._lock:
            if self.fault is not None:
                raise StoreError(self.fault)
            try:
                export = self._ask_fill(blob, descriptor)
            except _HolderDiedError:
                export = self._ask_fill(blob, descriptor)
            self._exports[blob.sha256] = export

    def grant(self, manifest: Manifest) -> tuple[dict[str, Any], list[int]]:
        """Return a client's data to attach to a model; descriptors stay this object's."""
        exports = [self._exports[blob.sha256] for _, blob in manifest.files]
        sizes_bytes = [export.size_bytes for export in exports]
        descriptors = [export.descriptor for export in exports]
        return {"device": self.name, "sizes_bytes": sizes_bytes}, descriptors

    def drop(self, blob: Blob) -> None:
        """Free a blob; attached clients keep it. This does not wait for the holder."""
        os.close(self._exports.pop(blob.sha256).descriptor)
        connection = self._connection
        if connection is not None:
            with suppress(OSError):  # the holder is gone
                wire.send(connection, {"do": "drop", "blob": blob.sha256}, [])

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._connection is not None:
            self._connection.close()
        while self._exports:
            os.close(self._exports.popitem()[1].descriptor)

    def _start_holder(self) -> None:
        """Start a holder; return once it is ready. `StoreError` if it cannot use the device."""
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, wire.MAX_MESSAGE_BYTES)
        with far:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __package__ + ".holder", str(far.fileno()), self._driver],
                env=os.environ
                | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": self._device},
                stdin=subprocess.DEVNULL,
                pass_fds=[far.fileno()],
            )
        if self._connection is not None:
            self._connection.close()
        self._connection = near
        try:
            self.name = self._receive()[0]["ready"]
        except StoreError:
            self._process.wait()
            near.close()
            self._connection = None
            raise

    def _ask_fill(self, blob: Blob, descriptor: int) -> Export:
        if self._process is None or self._process.poll() is not None:
            self._start_holder()
        assert self._connection is not None
        order = {"do": "fill", "blob": blob.sha256}
        try:
            wire.send(self._connection, order, [descriptor])
        except OSError as error:
            raise self._died() from error
        message, descriptors = self._receive()
        return Export(message["export"], *descriptors)

    def _receive(self) -> tuple[dict[str, Any], list[int]]:
        assert self._connection is not None
        try:
            received = wire.receive(self._connection)
        except OSError as error:
            raise self._died() from error
        if received is None:
            raise self._died()
        wire.raise_failure(received[0])
        return received

    def _died(self) -> _HolderDiedError:
        """Return the error of a holder that does not answer, after its process has ended."""
        assert self._process is not None
        self._process.kill()
        status = self._process.wait()
        return _HolderDiedError(f"the process that holds the device's memory ended ({status})")
