"""What requests lose before the replica can read them, and their answers after it."""

from collections.abc import Sequence

import numpy as np
import pytest

from deployments.control.balancer_wait import BalancerWait
from deployments.haproxy.admin_answers import MeanTimes


def revise(
    wait: BalancerWait,
    means: MeanTimes | None,
    refused: int = 0,
    way_ms: float = 0.0,
    unread_ms: Sequence[float] = (),
) -> None:
    wait.revise(means, refused=refused, way_ms=way_ms, unread_ms=unread_ms)


def test_what_the_balancer_measures_beyond_the_replica_and_the_way_is_lost() -> None:
    wait = BalancerWait()
    for response_time_s in (0.010, 0.030):
        wait.answered(response_time_s)
    revise(wait, MeanTimes(140.0, 0.0), way_ms=0.5)
    assert wait.wait_s == pytest.approx(0.1195)
    assert wait.draw_s(np.full(3, 0.02)).tolist() == pytest.approx([0.1195] * 3)


@pytest.mark.parametrize(("mean_ms", "lost_ms"), [(10.9, 0.0), (11.0, 0.0), (12.0, 2.0)])
def test_less_than_the_balancer_can_tell_is_not_lost(mean_ms: float, lost_ms: float) -> None:
    """Its means are in whole ms."""
    wait = BalancerWait()
    wait.answered(0.010)
    revise(wait, MeanTimes(mean_ms, 0.0))
    assert wait.wait_s == pytest.approx(1e-3 * lost_ms)


def test_nothing_is_lost_where_the_replica_counts_more_than_the_balancer() -> None:
    wait = BalancerWait()
    wait.answered(0.040)
    revise(wait, MeanTimes(30.0, 10.0), refused=5, way_ms=0.5)
    assert wait.wait_s == 0.0
    assert not wait.draw_s(np.full(5, 0.04)).any()


def test_requests_add_up_until_the_balancer_has_news() -> None:
    wait = BalancerWait()
    wait.answered(0.010)
    revise(wait, None, refused=1)
    wait.answered(0.030)
    revise(wait, MeanTimes(50.0, 6.0), refused=1)
    assert wait.wait_s == pytest.approx(0.030)
    # Two tries of four were refused: half of the requests have one try or more behind them.
    assert np.mean(wait.draw_s(np.full(10_000, 0.02)) > 0.024 + 1e-9) == pytest.approx(
        0.5, abs=0.02
    )


def test_old_news_is_forgotten() -> None:
    wait = BalancerWait()
    wait.answered(0.010)
    revise(wait, MeanTimes(50.0, 0.0))
    for _ in range(9):
        revise(wait, None)
        assert wait.wait_s == pytest.approx(0.040)
    revise(wait, None)
    assert wait.wait_s == 0.0


def test_waits_are_drawn_with_the_means_that_were_seen() -> None:
    wait = BalancerWait()
    for _ in range(80):
        wait.answered(0.010)
    revise(wait, MeanTimes(90.0, 20.0), refused=20)
    drawn_s = wait.draw_s(np.full(50_000, 0.010))
    assert drawn_s.min() == pytest.approx(0.060)
    assert drawn_s.mean() == pytest.approx(0.080, rel=0.02)
    # A fifth of the tries is refused, so an earlier try takes 20 ms / (0.2 / 0.8).
    assert np.unique(drawn_s)[1] - drawn_s.min() == pytest.approx(0.080)


def test_who_waited_long_at_the_replica_waits_less_at_the_balancer() -> None:
    wait = BalancerWait()
    for response_time_s in (0.010, 0.030):
        wait.answered(response_time_s)
    revise(wait, MeanTimes(50.0, 0.0))
    response_times_s = np.array([0.010, 0.030])
    totals_s = response_times_s + wait.draw_s(response_times_s)
    assert totals_s.mean() == pytest.approx(0.050)
    assert np.diff(totals_s)[0] == pytest.approx(0.010)
    # Never less than at the replica alone.
    response_times_s = np.array([0.0, 0.4])
    assert (wait.draw_s(response_times_s) >= 0).all()


def test_a_request_waits_until_it_is_read_as_long_as_one_of_the_sample() -> None:
    wait = BalancerWait()
    wait.answered(0.010)
    revise(wait, MeanTimes(15.0, 0.0), unread_ms=(0.0, 20.0, 100.0))
    assert wait.wait_s == pytest.approx(0.045)
    drawn_s = wait.draw_s(np.full(30_000, 0.010))
    values, counts = np.unique(drawn_s, return_counts=True)
    assert values.tolist() == pytest.approx([0.005, 0.025, 0.105])
    assert (counts / drawn_s.size).tolist() == pytest.approx(3 * [1 / 3], abs=0.02)
    revise(wait, None, unread_ms=(0.0,))
    assert wait.draw_s(np.full(9, 0.010)).max() < 0.006


def test_an_old_sample_is_forgotten() -> None:
    wait = BalancerWait()
    revise(wait, None, unread_ms=(30.0,))
    for _ in range(9):
        revise(wait, None)
        assert wait.wait_s == pytest.approx(0.030)
    revise(wait, None)
    assert wait.wait_s == 0.0
