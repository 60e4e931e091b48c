"""Memory that two processes share, for one message at a time.

Large buffers, such as the data of numpy arrays, stay out of the pickle and are copied once. The
memory has no name, only a file descriptor, so it is freed with the last process that has it.
"""

import mmap
import os
import pickle
import struct
from typing import Any

_LENGTH = struct.Struct("<Q")
_ALIGNMENT = 64
_FIRST_BYTES = 1 << 16


class Arena:
    """A growing piece of shared memory for one object; OSError without descriptors or memory.

    `descriptor` is that of another process's arena; by default a new arena is made.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = os.memfd_create("sojourn-arena") if descriptor is None else descriptor
        try:
            if descriptor is None:
                os.ftruncate(self.descriptor, _FIRST_BYTES)
            self._memory = self._map()
        except BaseException:
            if descriptor is None:
                os.close(self.descriptor)
            raise

    def _map(self) -> memoryview:
        return memoryview(mmap.mmap(self.descriptor, os.fstat(self.descriptor).st_size))

    @property
    def size(self) -> int:
        return self._memory.nbytes

    def write(self, value: Any) -> int:
        """Write an object; return its bytes. If it cannot be pickled, the arena becomes empty."""
        buffers: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        parts = [memoryview(pickled), *(buffer.raw() for buffer in buffers)]
        head = _LENGTH.size * (1 + len(parts))
        end = head + sum([part.nbytes + _ALIGNMENT for part in parts])
        if end > self.size:
            # Twice the required size: growing costs as much as some messages.
            os.ftruncate(self.descriptor, 1 << (end - 1).bit_length())
            self._memory = self._map()
        memory = self._memory
        struct.pack_into(
            f"<{1 + len(parts)}Q", memory, 0, len(parts), *[part.nbytes for part in parts]
        )
        offset = head
        for part in parts:
            offset = _aligned(offset)
            memory[offset : offset + part.nbytes] = part
            offset += part.nbytes
        return offset

    def read(self, size: int, copy: bool) -> Any:
        """Read the object; without a copy its buffers last until the next `write`."""
        if size > self.size:
            self._memory = self._map()
        memory = self._memory
        (count,) = _LENGTH.unpack_from(memory, 0)
        lengths = struct.unpack_from(f"<{count}Q", memory, _LENGTH.size)
        parts: list[memoryview | bytearray] = []
        offset = _LENGTH.size * (1 + count)
        for length in lengths:
            offset = _aligned(offset)
            part = memory[offset : offset + length]
            parts.append(bytearray(part) if copy and parts else part)
            offset += length
        return pickle.loads(parts[0], buffers=parts[1:])

    def close(self) -> None:
        """Close the descriptor; the memory stays until nothing refers to it."""
        os.close(self.descriptor)


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT
