import asyncio
import time

from deployments.batcher.device import WakeTimer
from tests.support.waiting import until


async def test_a_timer_wakes_once_at_the_earliest_time_asked_for_unless_it_is_cancelled():
    woken_s: list[float] = []
    timer = WakeTimer(asyncio.get_running_loop(), lambda: woken_s.append(time.monotonic()))
    now_s = time.monotonic()
    timer.set(now_s)
    for _ in range(2):
        timer.cancel()
    for after_s in (10.0, 0.01, None, 1000.0):
        timer.set(None if after_s is None else now_s + after_s)
    await until(lambda: woken_s)
    assert woken_s[0] >= now_s + 0.01
    timer.set(now_s + 0.01)
    await until(lambda: len(woken_s) == 2)
