import math

import pytest

from autoscaler.sizing.fleet_response import FleetResponse
from policy.batching_policy import BatchingPolicy
from policy.response_time.evaluation import evaluate
from policy.try_delays import TryDelays
from tests.support.profiles import GOOGLENET_P4 as PROFILE

GREEDY = BatchingPolicy.from_control_limit(1, PROFILE.best_batch_size)
DELAYS = TryDelays(0.5, 0.25, 1.0, retries=5)


def fleet(replicas_worth, delays=DELAYS, *, max_queue_rows=96):
    """Four replicas under a load that this many could just carry."""
    rate_per_s = replicas_worth * PROFILE.capacity_per_s
    return FleetResponse(
        lambda rate: evaluate(PROFILE, GREEDY, rate, max_queue_rows=max_queue_rows),
        *(delays, rate_per_s, 4),
    )


def test_without_refusals_each_replica_is_one_queue():
    rarely_full = fleet(1.0)
    alone = evaluate(PROFILE, GREEDY, PROFILE.capacity_per_s / 4, max_queue_rows=96)
    assert rarely_full.busy_probability == pytest.approx(0.0, abs=1e-12)
    assert rarely_full.answered_share == pytest.approx(1.0)
    assert rarely_full.service_level(20) == pytest.approx(alone.service_level(20 - 0.75))
    assert rarely_full.mean_power_w == pytest.approx(4 * alone.mean_power_w)
    assert rarely_full.percentile_ms(99) == pytest.approx(0.75 + alone.response_percentile_ms(99))


@pytest.mark.parametrize("replicas_worth", [2.0, 4.4])
def test_percentiles_invert_the_cdf(replicas_worth):
    some = fleet(replicas_worth)
    for percentile in (50.0, 80.0):
        share = some.service_level(some.percentile_ms(percentile))
        assert share == pytest.approx(percentile / 100, rel=1e-6)
        share = some.service_level(some.answered_percentile_ms(percentile))
        assert share == pytest.approx(some.answered_share * percentile / 100, rel=1e-4)


def test_a_percentile_above_the_answered_share_is_infinite():
    overfull = fleet(4.4)
    assert overfull.answered_share == pytest.approx(1 / 1.1, abs=0.02)
    assert overfull.percentile_ms(95) == math.inf
    assert math.isfinite(overfull.answered_percentile_ms(95))


def test_without_a_limit_of_retries_more_than_the_capacity_is_an_overload():
    unlimited = TryDelays(0.5, 0.25, 1.0)
    assert fleet(4.4, unlimited).is_overloaded
    assert not fleet(3.9, unlimited).is_overloaded
    assert not fleet(4.4).is_overloaded
