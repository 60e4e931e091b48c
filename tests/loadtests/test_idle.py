"""An event loop is idle while it waits, and not while its greenlets work."""

from collections.abc import Iterator

import gevent
import pytest

from loadtests.idle import IDLE_SHARE, Idle, connection_wait_s


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def idle(clock: Clock) -> Iterator[Idle]:
    counting = Idle(clock)
    yield counting
    counting.close()


def test_work_is_not_idle_time(clock: Clock, idle: Idle) -> None:
    def work() -> None:
        for _ in range(50):
            clock.now_s += 1
            gevent.sleep(0)

    gevent.joinall([gevent.spawn(work) for _ in range(3)])
    assert clock.now_s == 150
    assert idle.total_s == 0


def test_waiting_is_idle_time() -> None:
    idle = Idle()
    while idle.total_s < 0.02:  # for ever, if it were not
        gevent.sleep(0.005)
    idle.close()


def test_a_wait_is_the_services_if_the_generator_had_time_to_end_it() -> None:
    assert connection_wait_s(2.0, 1.9) == 2.0
    assert connection_wait_s(2.0, 2 * IDLE_SHARE) == 2.0
    assert connection_wait_s(2.0, IDLE_SHARE) == 0.0
    assert connection_wait_s(-2.0, 0.0) == 0.0
