import math
from dataclasses import replace

import numpy as np
import pytest

from autoscaler.simulator.arrivals import poisson_counts
from autoscaler.simulator.autoscalers.fixed import FixedFleet
from autoscaler.simulator.engines.interface import Routing
from autoscaler.simulator.scenario import Scenario
from autoscaler.simulator.simulation import simulate
from autoscaler.sizing.rand import rand_equilibrium, response_time_cdf
from policy.batching_policy import BatchingPolicy
from policy.event_loop import EventLoopCosts
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.response_time.evaluation import evaluate
from policy.service_model import BatchingSettings
from policy.try_delays import TryDelays
from tests.support.profiles import GOOGLENET_P4, PADDED, gamma_times

POWERS_OF_TWO = tuple(0 if n < 4 else 4 if n < 8 else 8 if n < 16 else 16 for n in range(17))
ONE_BY_ONE = Profile("one", "by one", np.array([2.0]), np.array([30.0]))
SINGLY = BatchingPolicy.from_control_limit(1, 1)
NO_DELAYS = TryDelays(0.0, 0.0, 0.0, 0)
SEEDS = 8
PERCENTILES = (50.0, 90.0, 99.0)


def runs(profile, batching, rate_per_s, seconds, replicas=1, limit_ms=10.0, room=4096, **options):
    """Simulate Poisson arrivals at a fixed fleet, once for each seed."""
    # The theory knows no deadlines.
    serve_late = BatchingSettings(max_queue_rows=room, max_age_ms=math.inf, serve_late=True)
    options = {"delays": NO_DELAYS, "settings": serve_late, **options}
    for seed in range(SEEDS):
        scenario = Scenario(
            profile,
            ServiceLevelObjective(limit_ms, 99.0),
            poisson_counts(rate_per_s, seconds, np.random.default_rng(seed)),
            within_second="uniform",
            seed=seed,
            batching=batching,
            replicas=replicas,
            **options,
        )
        yield simulate(scenario, FixedFleet(replicas))


def assert_near(simulated, expected, floor=0.0):
    """Check that the mean over the seeds is within four standard errors of the expected value."""
    simulated = np.array(simulated)
    error = simulated.std(ddof=1) / math.sqrt(len(simulated))
    assert abs(simulated.mean() - expected) <= 4 * error + floor, (
        simulated.mean(),
        error,
        expected,
    )


@pytest.mark.parametrize(
    ("profile", "policy", "traffic_intensity", "room"),
    [
        # M/D/1 (Crommelin); with room for three more it is M/D/1/4.
        (ONE_BY_ONE, SINGLY, 0.8, None),
        (ONE_BY_ONE, SINGLY, 1.1, 3),
        (GOOGLENET_P4, BatchingPolicy.from_control_limit(1, 32), 0.7, None),
        (GOOGLENET_P4, BatchingPolicy.from_control_limit(8, 32, 8.0), 1.05, 64),
        (PADDED, BatchingPolicy(POWERS_OF_TWO, 5.0), 0.8, 20),
        # A table that splits queues of nine to eleven, which no control limit does.
        (GOOGLENET_P4, BatchingPolicy((*(0,) * 4, *range(4, 9), 8, 8, 8, 12)), 0.3, None),
        (
            replace(gamma_times(GOOGLENET_P4, 0.3), idle_power_w=5.0),
            BatchingPolicy.from_control_limit(8, 32, 8.0),
            0.5,
            None,
        ),
        *(
            (
                replace(
                    gamma_times(GOOGLENET_P4, 0.3), event_loop=EventLoopCosts(0.4, 0.5, shares_cpu)
                ),
                BatchingPolicy.from_control_limit(8, 32, 8.0),
                0.5,
                None,
            )
            for shares_cpu in (True, False)
        ),
    ],
)
def test_one_replica_matches_the_exact_distribution(profile, policy, traffic_intensity, room):
    """Check percentiles, refusals and power against the predicted ones."""
    in_tandem = profile.serial().event_loop is not None
    # In tandem the evaluation is itself a sample, off by 2% and more at higher loads.
    error = 0.02 if in_tandem else 0.004
    rate_per_s = traffic_intensity * profile.capacity_per_s
    expected = evaluate(profile, policy, rate_per_s, max_queue_rows=room)
    seconds = math.ceil(100_000 / rate_per_s)
    found = list(runs(profile, policy, rate_per_s, seconds, room=room or 4096))
    for percentile in PERCENTILES:
        expected_ms = expected.response_percentile_ms(percentile)
        # The bins of the histogram are up to 0.4% wide.
        assert_near(
            [run.response_percentile_ms(percentile) for run in found],
            expected_ms,
            floor=error * expected_ms,
        )
    assert_near([run.refused.sum() / run.offered.sum() for run in found], expected.full_probability)
    # Requests that wait at the end are still served, after the last second.
    powers_w = [run.energy_j.sum() / seconds for run in found]
    assert_near(powers_w, expected.mean_power_w, floor=0.001 * expected.mean_power_w)
    level = expected.service_level(10.0) * (1 - expected.full_probability)
    assert_near([run.service_level for run in found], level, floor=error if in_tandem else 1e-5)


@pytest.mark.parametrize(
    ("profile", "policy", "room", "traffic_intensity", "delays"),
    [
        (ONE_BY_ONE, SINGLY, 1, 0.8, TryDelays(0.5, 0.5, 3.0, 5)),
        (ONE_BY_ONE, SINGLY, 2, 1.2, TryDelays(1.0, 1.0, 4.0, 2)),
        (GOOGLENET_P4, BatchingPolicy.from_control_limit(1, 8), 8, 0.7, TryDelays(1, 1, 8, 3)),
    ],
)
def test_a_large_fleet_matches_theorem_2_of_rand_over_batching_replicas(
    profile, policy, room, traffic_intensity, delays
):
    # The theorem assumes independent tries: a large fleet, and retries that outlast a batch.
    replicas = 100
    rate_per_s = traffic_intensity * replicas * profile.capacity_per_s
    equilibrium = rand_equilibrium(
        rate_per_s,
        replicas,
        lambda rate: evaluate(profile, policy, rate, max_queue_rows=room).full_probability,
        delays.retries,
    )
    busy = equilibrium.busy_probability
    accepted = evaluate(profile, policy, equilibrium.attempt_rate_per_s, max_queue_rows=room)
    limit_ms = 12.0
    options = {"room": room, "delays": delays}
    seconds = math.ceil(40_000 / rate_per_s)
    found = list(runs(profile, policy, rate_per_s, seconds, replicas, limit_ms, **options))
    refused = [run.refused.sum() / run.offered.sum() for run in found]
    assert_near(refused, busy ** (delays.retries + 1), floor=0.003)
    # The theorem's response time ends with the batch, the simulated one at the client.
    level = response_time_cdf(limit_ms - delays.reply_delay_ms, busy, accepted.cdf, delays)
    assert_near([run.service_level for run in found], float(level), floor=0.005)


@pytest.mark.parametrize("routing", Routing)
def test_a_retry_goes_to_another_replica_than_the_one_that_refused(routing):
    """Each of two replicas holds one request on the device and one that waits: there is room."""
    busy_at_once = Profile("slow", "device", np.array([1e6]))
    for seed in range(20):
        scenario = Scenario(
            busy_at_once,
            ServiceLevelObjective(10.0, 99.0),
            np.array([4]),
            batching=BatchingPolicy.from_control_limit(1, 1),
            settings=BatchingSettings(max_queue_rows=1, max_age_ms=0.0),
            delays=TryDelays(0.1, 0.1, 0.0, 1),
            replicas=2,
            routing=routing,
            seed=seed,
        )
        assert simulate(scenario, FixedFleet(2)).refused.sum() == 0
