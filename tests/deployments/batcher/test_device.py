"""One timer, whatever is asked of it."""

import asyncio
import time

from deployments.batcher.device import WakeTimer
from tests.support.waiting import until


async def test_it_wakes_once_at_the_earliest_time_asked_for_and_can_be_set_again() -> None:
    woken_s: list[float] = []
    timer = WakeTimer(asyncio.get_running_loop(), lambda: woken_s.append(time.monotonic()))
    now_s = time.monotonic()
    for after_s in (10.0, 0.01, None, 20.0):
        timer.set(None if after_s is None else now_s + after_s)
    await until(lambda: woken_s)
    assert woken_s[0] >= now_s + 0.01
    timer.set(now_s + 0.01)
    await until(lambda: len(woken_s) == 2)


async def test_it_can_be_cancelled() -> None:
    loop, later = asyncio.get_running_loop(), asyncio.Event()
    woken: list[None] = []
    timer = WakeTimer(loop, lambda: woken.append(None))
    timer.set(time.monotonic() + 0.001)
    loop.call_later(0.002, later.set)
    timer.cancel()
    timer.cancel()
    await later.wait()
    assert woken == []
