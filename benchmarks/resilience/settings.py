"""What surrounds a service under test: the environment variables, and what they name."""

import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from deployments.local.machine import LOOPBACK, free_port

Setting = Callable[[], AbstractContextManager[Mapping[str, str]]]

#: Where Ray keeps its logs and sockets; on `small_disk`, the disk itself.
DISK = "RAY_TMPDIR"
_DISK_BYTES = 256 << 20
#: Names the file that says by how much the clock is wrong.
CLOCK = "RESILIENCE_CLOCK"
_MOVABLE = f"""\
import mmap, os, struct, time

with open(os.environ["{CLOCK}"], "rb") as _file:
    _wrong = mmap.mmap(_file.fileno(), 8, access=mmap.ACCESS_READ)
_time, _time_ns, _unpack = time.time, time.time_ns, struct.Struct("d").unpack_from
time.time = lambda: _time() + _unpack(_wrong)[0]
time.time_ns = lambda: _time_ns() + int(1e9 * _unpack(_wrong)[0])
"""


@contextmanager
def as_it_is() -> Iterator[Mapping[str, str]]:
    """Change nothing."""
    yield {}


@contextmanager
def small_disk() -> Iterator[Mapping[str, str]]:
    """Keep Ray's logs and the cache of solved tables on a small disk in memory; needs root."""
    # A short path: those of Ray's Unix sockets are limited to 107 bytes.
    disk = tempfile.mkdtemp(prefix="disk-", dir="/tmp")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES},mode=700", "tmpfs", disk]
    try:
        if subprocess.run(mount, capture_output=True).returncode:
            raise SystemExit("a disk in memory cannot be mounted")
        try:
            yield {DISK: disk, "XDG_CACHE_HOME": f"{disk}/cache"}
        finally:
            subprocess.run(["umount", "--lazy", disk], check=True)
    finally:
        Path(disk).rmdir()


@contextmanager
def movable_clock() -> Iterator[Mapping[str, str]]:
    """Have the Python code of every process read a time of day that can be set."""
    with tempfile.TemporaryDirectory() as folder:
        set_clock(Path(folder) / "clock", 0.0)
        (Path(folder) / "sitecustomize.py").write_text(_MOVABLE)
        path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
        yield {CLOCK: f"{folder}/clock", "PYTHONPATH": path}


def set_clock(clock: Path, wrong_s: float) -> None:
    """Set by how much the clock of `movable_clock` is wrong."""
    with clock.open("r+b" if clock.exists() else "wb") as file:
        file.write(struct.pack("d", wrong_s))


@contextmanager
def with_redis() -> Iterator[Mapping[str, str]]:
    """Have the GCS keep its tables in a Redis."""
    program = shutil.which("redis-server")
    if program is None:
        raise SystemExit("redis-server is not installed")
    with tempfile.TemporaryDirectory() as folder:
        port = free_port(6379)
        where = ["--bind", LOOPBACK, "--port", str(port), "--dir", folder]
        redis = subprocess.Popen([program, *where, "--save", ""], stdout=subprocess.DEVNULL)
        try:
            yield {"RAY_REDIS_ADDRESS": f"{LOOPBACK}:{port}"}
        finally:
            redis.kill()
            redis.wait()
