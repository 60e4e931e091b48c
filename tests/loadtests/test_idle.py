"""An event loop is idle while it waits, and not while its greenlets work."""

import gevent

from loadtests.idle import IDLE_SHARE, Idle, connection_wait_s


def test_work_is_not_idle_time() -> None:
    now_s = 0.0
    idle = Idle(lambda: now_s)

    def work() -> None:
        nonlocal now_s
        for _ in range(50):
            now_s += 1
            gevent.sleep(0)

    gevent.joinall([gevent.spawn(work) for _ in range(3)])
    idle.close()
    assert (now_s, idle.total_s) == (150, 0)


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
