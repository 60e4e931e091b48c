"""What surrounds a service under test: the environment variables, and what they name."""

import shutil
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
#: The file in which libfaketime reads by how much the clock is wrong.
CLOCK = "FAKETIME_TIMESTAMP_FILE"


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
    """Have libfaketime tell the time of day, but not the monotonic time."""
    libraries = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not libraries:
        raise SystemExit("libfaketime is not installed")
    with tempfile.TemporaryDirectory() as folder:
        clock = Path(folder) / "clock"
        clock.write_text("+0\n")
        yield {
            "LD_PRELOAD": str(libraries[0]),
            CLOCK: str(clock),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }


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
