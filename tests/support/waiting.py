"""Waits for what other threads, processes and machines do, however busy this machine is."""

import asyncio
import time
from collections.abc import Callable

import httpx
import psutil

#: Nothing that a test waits for takes so long. A test that fails has waited for it in vain.
LIMIT_S = 120.0
_LOOK_EVERY_S = 0.2


def wait_for(condition: Callable[[], object], timeout_s: float = LIMIT_S) -> bool:
    """Poll `condition`, which may ask a service; return whether it came true in time."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        # A machine that stood still has not waited: it looks once more after the deadline.
        over = time.monotonic() >= deadline_s
        try:
            if condition():
                return True
        except (httpx.HTTPError, KeyError):
            pass
        if over:
            return False
        time.sleep(_LOOK_EVERY_S)


def has_ended(process: psutil.Process) -> bool:
    """Return whether a process has ended, even if nobody has asked for its status yet."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:  # its parent has asked, perhaps a moment ago
        return True


async def until(condition: Callable[[], object]) -> None:
    """Return when `condition`, which the event loop or another thread brings about, holds."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.001)
