"""What requests lose before the replica can read them."""

import pytest

from deployments.control.balancer_wait import BalancerWait


def test_what_the_balancer_measures_beyond_the_replica_and_the_way_is_lost() -> None:
    wait = BalancerWait()
    for response_time_s in (0.010, 0.030):
        wait.answered(response_time_s)
    wait.revise(140.0, refused=0, way_ms=0.5)
    assert wait.wait_s == pytest.approx(0.1195)


def test_requests_refused_count_in_the_balancers_mean_too() -> None:
    wait = BalancerWait()
    wait.answered(0.040)
    wait.revise(30.0, refused=3, way_ms=0.0)
    assert wait.wait_s == pytest.approx(0.020)


def test_nothing_is_lost_where_the_replica_counts_more_than_the_balancer() -> None:
    wait = BalancerWait()
    wait.answered(0.040)
    wait.revise(30.0, refused=0, way_ms=0.5)
    assert wait.wait_s == 0.0


def test_requests_add_up_until_the_balancer_has_news() -> None:
    wait = BalancerWait()
    wait.answered(0.010)
    wait.revise(None, refused=0, way_ms=0.0)
    wait.answered(0.030)
    wait.revise(50.0, refused=0, way_ms=0.0)
    assert wait.wait_s == pytest.approx(0.030)


def test_old_news_is_forgotten() -> None:
    wait = BalancerWait()
    wait.answered(0.010)
    wait.revise(50.0, refused=0, way_ms=0.0)
    for _ in range(9):
        wait.revise(None, refused=0, way_ms=0.0)
        assert wait.wait_s == pytest.approx(0.040)
    wait.revise(None, refused=0, way_ms=0.0)
    assert wait.wait_s == 0.0


def test_waits_are_drawn_with_the_mean_that_was_seen() -> None:
    wait = BalancerWait()
    assert wait.draw_s() == 0.0
    wait.answered(0.0)
    wait.revise(200.0, refused=0, way_ms=0.0)
    drawn_s = [wait.draw_s() for _ in range(20_000)]
    assert sum(drawn_s) / len(drawn_s) == pytest.approx(0.2, rel=0.03)
    # The share of an exponential distribution above half of its mean.
    assert sum(value > 0.1 for value in drawn_s) / len(drawn_s) == pytest.approx(0.607, abs=0.015)
