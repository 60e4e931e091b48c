"""Hold processes to a share of a core, as a container's limit does; it needs root and Linux."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

_V1, _V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
_ENDED_WITHIN_S = 10.0


@contextmanager
def cpu_quota(share: float, period_ms: int) -> Iterator[Path]:
    """Yield a file; a process whose id is written to it gets at most `share` of a core.

    The processes must have ended when the context does.

    Raises
    ------
    ClickException
        This process may not make a control group.
    """
    v1 = (_V1 / "cpu.cfs_quota_us").exists()
    group = (_V1 if v1 else _V2) / f"sojourn-{os.getpid()}-{os.urandom(4).hex()}"
    period_us = 1000 * period_ms
    quota_us = round(share * period_us)
    try:
        group.mkdir()
        if v1:
            (group / "cpu.cfs_period_us").write_text(str(period_us))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        else:
            (group / "cpu.max").write_text(f"{quota_us} {period_us}")
    except OSError as error:
        raise click.ClickException(f"a control group for the CPU's time: {error}") from error
    try:
        yield group / "cgroup.procs"
    finally:
        # Children of those processes end a moment after them.
        until_s = time.monotonic() + _ENDED_WITHIN_S
        while (group / "cgroup.procs").read_text() and time.monotonic() < until_s:
            time.sleep(0.01)
        group.rmdir()
