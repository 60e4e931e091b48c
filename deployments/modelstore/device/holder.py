"""The holder: a child process of the manager that owns and fills device memory.

It is a separate process so that neither the manager nor any client needs a device context for it,
and so that a device error ends nothing else. It ends with its connection to the manager.

    python -m deployments.modelstore.device.holder DESCRIPTOR DRIVER
"""

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from typing import Any

from deployments.modelstore import wire
from deployments.modelstore.device.driver import Export, HolderDriver, Staging
from deployments.modelstore.device.layout import Piece, offsets, pieces, windows
from deployments.modelstore.errors import FetchError, StoreError
from deployments.modelstore.files.safetensors_header import header_end, read_header

#: One thread reads memory at 5 to 10 GB/s; a GPU takes 25 to 55 GB/s over its bus.
COPY_THREADS = 4
#: Large enough to hide a copy's fixed cost of some µs.
STAGING_BYTES = 16 << 20


class Holder:
    """Memory on the device, by digest of the blob."""

    def __init__(self, driver: HolderDriver) -> None:
        self._driver = driver
        self._handles: dict[str, int] = {}
        self._pool = ThreadPoolExecutor(COPY_THREADS, thread_name_prefix="device-copy")
        self._local = threading.local()

    def fill(self, sha256: str, descriptor: int, size_bytes: int) -> Export:
        """Copy a blob from sealed host memory to the device; return its export."""
        data_begin = header_end(os.pread(descriptor, 8, 0), size_bytes)
        entries = read_header(os.pread(descriptor, data_begin, 0), size_bytes)
        handle = self._driver.allocate(offsets(data_begin, entries)[-1])
        try:
            self._copy(descriptor, handle, pieces(data_begin, entries))
            export = self._driver.export(handle)
        except BaseException:
            self._driver.free(handle)
            raise
        self._handles[sha256] = handle
        return export

    def drop(self, sha256: str) -> None:
        """Free a blob's memory. Memory of an earlier holder is not freed."""
        if sha256 in self._handles:
            self._driver.free(self._handles.pop(sha256))

    def _copy(self, descriptor: int, handle: int, all_pieces: Iterable[Piece]) -> None:
        parts = windows(list(all_pieces), STAGING_BYTES)
        futures = [self._pool.submit(self._copy_part, descriptor, handle, *part) for part in parts]
        try:
            for future in futures:
                future.result()
        finally:
            for future in futures:
                future.cancel()
            for future in futures:
                if not future.cancelled():
                    future.exception()

    def _copy_part(
        self, descriptor: int, handle: int, begin: int, size_bytes: int, inside: list[Piece]
    ) -> None:
        if not hasattr(self._local, "staging"):
            self._local.staging = self._driver.staging(STAGING_BYTES)
        staging: Staging = self._local.staging
        for piece in inside:
            with staging.buffer[piece.device_offset :][: piece.size_bytes] as target:
                _read_all(descriptor, target, piece.file_offset)
        self._driver.write(handle, begin, staging, size_bytes)


def _read_all(descriptor: int, target: memoryview, offset: int) -> None:
    done = 0
    while done < len(target):
        got = os.preadv(descriptor, [target[done:]], offset + done)
        if got == 0:
            raise FetchError(f"host memory ends at byte {offset + done}")
        done += got


def serve(connection: socket.socket, driver_module: str) -> None:
    try:
        driver: HolderDriver = import_module(driver_module).open_holder()
    except StoreError as error:
        wire.send(connection, {"error": [type(error).__name__, str(error)]}, [])
        return
    wire.send(connection, {"ready": driver.device}, [])
    holder = Holder(driver)
    while (received := wire.receive(connection)) is not None:
        message, descriptors = received
        if message["do"] == "drop":
            holder.drop(message["blob"])
            continue
        try:
            _fill(connection, holder, message, descriptors[0])
        finally:
            os.close(descriptors[0])


def _fill(
    connection: socket.socket, holder: Holder, message: dict[str, Any], descriptor: int
) -> None:
    try:
        export = holder.fill(message["blob"], descriptor, message["bytes"])
    except (StoreError, OSError) as error:
        wire.send(connection, {"error": [type(error).__name__, str(error)]}, [])
        return
    try:
        wire.send(connection, {"export": export.size_bytes}, [export.descriptor])
    finally:
        os.close(export.descriptor)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the manager
    connection = socket.socket(fileno=int(sys.argv[1]))
    with connection, suppress(BrokenPipeError, ConnectionResetError):  # the manager is gone
        serve(connection, sys.argv[2])
    # Do not wait for copy threads or the driver's shutdown.
    os._exit(0)


if __name__ == "__main__":
    main()
