"""The holder: a child process of the manager that owns and fills device memory.

It is a separate process so that neither the manager nor any client needs a device context for it,
and so that a device error ends nothing else. It ends with its connection to the manager.

    python -m deployments.modelstore.device.holder DESCRIPTOR DRIVER
"""

import os
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from queue import SimpleQueue
from typing import Any

from deployments.modelstore import wire
from deployments.modelstore.device.driver import Export, HolderDriver, Staging
from deployments.modelstore.device.layout import offsets, pieces
from deployments.modelstore.errors import FetchError, StoreError
from deployments.modelstore.files.safetensors_header import (
    LENGTH_BYTES,
    header_end,
    read_entries,
)

#: One thread reads memory at 5 to 10 GB/s; a GPU takes 25 to 55 GB/s over its bus.
COPY_THREADS = 4
#: Large enough to hide a copy's fixed cost of some µs.
STAGING_BYTES = 16 << 20


class Holder:
    """Memory on the device, by digest of the blob."""

    def __init__(self, driver: HolderDriver) -> None:
        self._driver = driver
        self._handles: dict[str, int] = {}
        self._stagings: SimpleQueue[Staging] = SimpleQueue()
        for _ in range(COPY_THREADS):
            self._stagings.put(driver.staging(STAGING_BYTES))

    def fill(self, sha256: str, descriptor: int) -> Export:
        """Copy a blob from sealed host memory to the device; return its export."""
        entries = read_entries(descriptor)
        data_begin = header_end(os.pread(descriptor, LENGTH_BYTES, 0))
        handle = self._driver.allocate(offsets(data_begin, entries)[-1])

        def copy(piece: tuple[int, int, int]) -> None:
            begin, offset, size_bytes = piece
            staging = self._stagings.get()
            try:
                with staging.buffer[:size_bytes] as target:
                    if os.preadv(descriptor, [target], begin) != size_bytes:
                        raise FetchError(f"host memory cannot be read at byte {begin}")
                self._driver.write(handle, offset, staging, size_bytes)
            finally:
                self._stagings.put(staging)

        try:
            with ThreadPoolExecutor(COPY_THREADS) as pool:
                list(pool.map(copy, pieces(data_begin, entries, STAGING_BYTES)))
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


def serve(connection: socket.socket, driver_module: str) -> None:
    try:
        driver: HolderDriver = import_module(driver_module).open_holder()
        holder = Holder(driver)
    except StoreError as error:
        wire.send(connection, wire.failure(error), [])
        return
    wire.send(connection, {"ready": driver.device}, [])
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
        export = holder.fill(message["blob"], descriptor)
    except (StoreError, OSError) as error:
        fault = error if isinstance(error, StoreError) else FetchError(str(error))
        wire.send(connection, wire.failure(fault), [])
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
