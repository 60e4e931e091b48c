"""Cost comparison of sharing and copying: small models are copied where that is faster.

TrIMS compares the cost of sharing per object with the cost of copying per byte (Dakkak et al.,
2018, section 5.2). On the CPU an object is a file, which a client maps once, however many tensors
it has.
"""

import fcntl
import json
import mmap
import os
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deployments.modelstore.host_memory import SEALS, write_at
from deployments.modelstore.names import Manifest

#: Each process has its own copy, so larger models are always shared.
MAX_COPIED_BYTES = 4 << 20
#: Sizes of the files with which the costs are measured; such models are as small.
_SMALL_BYTES, _LARGE_BYTES = 4 << 10, 128 << 10
_REPEATS = 15


@dataclass(frozen=True)
class Sharing:
    """Whether a client maps or copies a model, and the estimates behind the decision.

    Attributes
    ----------
    shared : bool
        Whether it maps the store's memory; else it copies the bytes and gives the model back.
    share_us, copy_us : float or None
        Estimated CPU time of each method, in µs, including the first read; None if the store
        always shares.
    """

    shared: bool
    share_us: float | None = None
    copy_us: float | None = None


@dataclass(frozen=True)
class SharingCosts:
    """CPU time of sharing and copying on this machine, per file and per byte.

    It includes the first read.
    """

    share_s: float
    share_s_per_byte: float
    copy_s: float
    copy_s_per_byte: float

    def decide(self, manifest: Manifest) -> Sharing:
        """Return whether a client should map or copy a model (TrIMS, section 5.2)."""
        files, size_bytes = len(manifest.files), sum(blob.size_bytes for _, blob in manifest.files)
        share_s = files * self.share_s + size_bytes * self.share_s_per_byte
        copy_s = files * self.copy_s + size_bytes * self.copy_s_per_byte
        shared = share_s <= copy_s or size_bytes > MAX_COPIED_BYTES
        return Sharing(shared, 1e6 * share_s, 1e6 * copy_s)

    @property
    def shared_from_bytes(self) -> int:
        """Smallest size at which a model of one file is shared."""
        saved_s = self.share_s - self.copy_s
        saved_s_per_byte = self.copy_s_per_byte - self.share_s_per_byte
        if saved_s <= 0:
            return 0
        if saved_s_per_byte <= 0:
            return MAX_COPIED_BYTES
        return min(MAX_COPIED_BYTES, round(saved_s / saved_s_per_byte))

    def to_dict(self) -> dict[str, Any]:
        """Return the costs, and the smallest size at which a model of one file is shared."""
        return asdict(self) | {"shared_from_bytes": self.shared_from_bytes}


def cached_costs(path: Path) -> SharingCosts:
    """Return the costs from the cache file at `path`, or measure and cache them.

    A file that cannot be read or written is ignored. Raises `OSError` if there is no memory to
    measure with.
    """
    machine = _machine()
    with suppress(OSError, ValueError, TypeError, KeyError):
        saved = json.loads(path.read_bytes())
        if saved.pop("machine") == machine:
            return SharingCosts(**{name: float(value) for name, value in saved.items()})
    costs = measure_costs()
    with suppress(OSError):
        temporary = path.with_name(f"{path.name}.new")
        temporary.write_text(json.dumps({"machine": machine, **asdict(costs)}))
        temporary.rename(path)
    return costs


def measure_costs() -> SharingCosts:
    """Measure both methods on two sealed files; it takes a few milliseconds.

    Raises
    ------
    OSError
        There is no memory.
    """
    share_s, share_s_per_byte = _line(_map)
    copy_s, copy_s_per_byte = _line(copy_of)
    return SharingCosts(share_s, share_s_per_byte, copy_s, copy_s_per_byte)


def copy_of(descriptor: int, size_bytes: int) -> bytearray:
    """Return a private copy of a memory file.

    Raises
    ------
    OSError
        It cannot be read.
    """
    copied = bytearray(size_bytes)
    with memoryview(copied) as view:
        done = 0
        while done < size_bytes:
            got = os.preadv(descriptor, [view[done:]], done)
            if got == 0:
                raise OSError(f"a memory file of {size_bytes} bytes ends after {done}")
            done += got
    return copied


def _map(descriptor: int, size_bytes: int) -> mmap.mmap:
    return mmap.mmap(descriptor, size_bytes, access=mmap.ACCESS_COPY)


def _line(take: Callable[[int, int], mmap.mmap | bytearray]) -> tuple[float, float]:
    """Return the cost per file and per byte: the line through two sizes."""
    small_s, large_s = _median_s(take, _SMALL_BYTES), _median_s(take, _LARGE_BYTES)
    per_byte_s = max(0.0, (large_s - small_s) / (_LARGE_BYTES - _SMALL_BYTES))
    return max(0.0, small_s - per_byte_s * _SMALL_BYTES), per_byte_s


def _median_s(take: Callable[[int, int], mmap.mmap | bytearray], size_bytes: int) -> float:
    descriptor = _sealed_zeros(size_bytes)
    # They are kept until the end: reused memory costs less than fresh memory.
    taken, seconds = [], []
    try:
        for _ in range(_REPEATS):
            begin_s = time.thread_time()
            buffer = take(descriptor, size_bytes)
            buffer.find(b"\1")  # reads all of it
            seconds.append(time.thread_time() - begin_s)
            taken.append(buffer)
    finally:
        os.close(descriptor)
    return statistics.median(seconds)


def _sealed_zeros(size_bytes: int) -> int:
    descriptor = os.memfd_create("sojourn:costs", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        write_at(descriptor, bytes(size_bytes), 0)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _machine() -> str:
    """Return the processor and the kernel, on which the costs depend."""
    processor = ""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                processor = line.partition(":")[2].strip()
                break
    return f"{processor}, {os.uname().release}"
