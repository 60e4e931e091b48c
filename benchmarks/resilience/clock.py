"""A clock that steps: every process of the service, Ray's and HAProxy too, sees another time.

A library that is preloaded into them shifts the time of day that the C library tells, by as many
seconds as a file says. The machine's own clock is left alone.
"""

import mmap
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.resilience.run import Run
from benchmarks.resilience.service import Document, Service, serving

SOURCE = Path(__file__).with_name("stepped_clock.c")
#: The variable that tells the library, and the fault, where the file is.
_SHIFT = "SOJOURN_CLOCK_SHIFT"
HOUR_S = 3600
_SECONDS = struct.Struct("l")


@contextmanager
def stepping_clock() -> Iterator[dict[str, str]]:
    """Yield the environment of processes whose clock `step` moves.

    Raises
    ------
    SystemExit
        There is no C compiler.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        raise SystemExit("a C compiler (cc) is needed")
    with tempfile.TemporaryDirectory() as name:
        library, shift = Path(name) / "clock.so", Path(name) / "shift"
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
        subprocess.run(command, check=True)
        shift.write_bytes(_SECONDS.pack(0))
        yield {"LD_PRELOAD": str(library), _SHIFT: str(shift)}


def step(shift: Path, shift_s: int) -> None:
    """Set by how many seconds the time of day is shifted, for all processes at once."""
    with shift.open("r+b") as file, mmap.mmap(file.fileno(), _SECONDS.size) as memory:
        memory[:] = _SECONDS.pack(shift_s)


@contextmanager
def on_a_stepping_clock(document: Document) -> Iterator[Service]:
    """Serve a config with a clock that can be stepped."""
    with stepping_clock() as environment, serving(document, environment) as service:
        yield service


def stepped(run: Run) -> None:
    """Step the clock an hour forward, two hours back, and right again; kill a replica meanwhile."""
    shift = Path(run.service.process.environ()[_SHIFT])
    before = {process.pid for process in run.service.replicas()}
    run.begin()
    for shift_s in (HOUR_S, -HOUR_S):
        step(shift, shift_s)
        time.sleep(10 if run.quick else 20)
    gone = before - {process.pid for process in run.service.replicas()}
    run.notes.append(f"{len(gone)} replicas ended by the steps")
    for process in run.service.replicas()[:1]:
        process.kill()
    time.sleep(5)
    step(shift, 0)
    run.notes.append(
        f"the killed one was {'' if run.service.wait_for_replicas(2, 60) else 'not '}replaced"
    )
