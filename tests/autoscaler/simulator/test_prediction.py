from pathlib import Path

import numpy as np
import pytest

from autoscaler.simulator.prediction import predict
from autoscaler.sizing.batch_queue_estimator import BatchQueueEstimator
from policy.batcher.limits import Limits
from policy.batching_policy import BatchingPolicy
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.response_time.evaluation import evaluate
from policy.try_delays import TryDelays

PROFILE = Profile.load(Path(__file__).parents[3] / "configs" / "profiles" / "googlenet-p4.json")
SLA = ServiceLevelObjective(40, 99)
GREEDY = BatchingPolicy.from_control_limit(1, PROFILE.best_batch_size)
DELAYS = TryDelays(0.5, 0.5, 1.0, 5)
PERCENTILES = (50.0, 99.0)


def predicted(rate_per_s, replicas, policy=GREEDY, profile=PROFILE, max_queue_rows=96):
    limits = Limits(100.0, max_queue_rows, profile.latency_ms.tolist())
    return predict(profile, policy, SLA, DELAYS, limits, rate_per_s, replicas, PERCENTILES)


def test_without_refusals_each_replica_is_one_queue():
    fleet = predicted(4000, 4)
    alone = evaluate(PROFILE, GREEDY, 1000, max_queue_rows=96)
    assert fleet.service_level == pytest.approx(alone.service_level(40 - 0.5 - 0.5))
    assert fleet.mean_power_w == pytest.approx(4 * alone.mean_power_w)
    for percentile, response_ms in fleet.percentiles_ms:
        expected = 0.5 + 0.5 + alone.response_percentile_ms(percentile)
        assert response_ms == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_it_agrees_with_the_estimator_for_the_same_policy():
    estimator = BatchQueueEstimator(PROFILE, DELAYS, max_queue_rows=96)
    rate_per_s = 3.9 * PROFILE.capacity_per_s
    # The estimator counts a response until the batch ends, without the reply delay.
    sized = estimator.predict(rate_per_s, 4, ServiceLevelObjective(39.5, 99))
    fleet = predicted(rate_per_s, 4, sized.policy)
    assert sized.busy_probability > 1e-4
    assert fleet.service_level == pytest.approx(sized.service_level)
    assert fleet.mean_power_w == pytest.approx(sized.mean_power_w)


def test_percentiles_are_of_the_answered_requests():
    fleet = predicted(4.4 * PROFILE.capacity_per_s, 4)  # a tenth more than they can serve
    answered = float(fleet.cdf(np.array(1e5)))
    assert answered == pytest.approx(1 / 1.1, abs=0.02)
    for percentile, response_ms in fleet.percentiles_ms:
        share = float(fleet.cdf(np.array(response_ms)))
        assert share == pytest.approx(answered * percentile / 100, rel=1e-3)


def test_no_energy_gives_no_power():
    profile = Profile("m", "d", PROFILE.latency_ms)
    assert predicted(1000, 2, profile=profile).mean_power_w is None
