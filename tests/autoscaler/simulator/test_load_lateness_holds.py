"""What a load-lateness curve says beyond the SLA's rate is what simulated replicas do."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy import stats

from autoscaler.simulator.arrivals import WithinSecond, poisson_counts
from autoscaler.simulator.autoscalers.fixed import FixedFleet
from autoscaler.simulator.scenario import Scenario
from autoscaler.simulator.simulation import simulate
from policy.batcher.limits import limits_for
from policy.batching_policy import BatchingPolicy
from policy.event_loop import EventLoopCosts
from policy.latency_quantiles import LatencyQuantiles
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.service_model import BatchingSettings
from policy.try_delays import TryDelays
from tests.support.profiles import GOOGLENET_P4 as P4

SIZES = np.arange(1, 33)
LINEAR = Profile("linear", "d", 0.4 + 7.8 * SIZES)
FLAT = Profile("flat", "d", np.full(32, 40.0))
STEPS = Profile("steps", "d", 1 + 2.0 * np.ceil(SIZES / 8))
REQUESTS = 60_000


def varied(profile: Profile, variation: float) -> Profile:
    """Make batch times vary as a gamma distribution."""
    percentiles = np.array([1.0, 10.0, 50.0, 90.0, 99.0])
    times = stats.gamma(variation**-2, scale=variation**2).ppf(percentiles / 100)
    ratios = (times / times[2])[:, None] * np.ones(profile.max_batch_size)
    return replace(profile, latency_quantiles=LatencyQuantiles(percentiles, ratios))


@dataclass(frozen=True)
class Case:
    profile: Profile
    response_time_ms: float
    tolerance: float

    def scenario(self, *, serve_late: bool = False) -> Scenario:
        """Make the scenario of a replica that starts whenever its device is free.

        Behind an event loop of its own it starts batches that are worth the event loop's time.
        """
        objective, delays = ServiceLevelObjective(self.response_time_ms, 99.0), TryDelays(retries=0)
        limits = limits_for(self.profile, objective, delays, serve_late=serve_late)
        start = 1 if self.profile.serial().event_loop is None else 8
        return Scenario(
            self.profile,
            objective,
            np.ones(1),
            delays=delays,
            settings=BatchingSettings(serve_late=serve_late),
            batching=BatchingPolicy.from_control_limit(start, limits.max_batch_size),
        )


def in_time(template: Scenario, rate_per_s: float, replicas: int = 1) -> float:
    seconds = max(4, int(REQUESTS / rate_per_s))
    counts = poisson_counts(rate_per_s, seconds, np.random.default_rng(11)).astype(np.float64)
    scenario = replace(
        template,
        counts=counts,
        within_second=WithinSecond.UNIFORM,
        replicas=replicas,
        max_replicas=replicas,
    )
    return simulate(scenario, FixedFleet(replicas)).service_level


PLAIN = [
    Case(P4, 12.0, 0.02),
    Case(P4, 30.0, 0.02),
    Case(P4, 100.0, 0.02),
    Case(LINEAR, 50.0, 0.02),
    Case(LINEAR, 200.0, 0.02),
    Case(FLAT, 100.0, 0.02),
    Case(FLAT, 130.0, 0.02),
    Case(STEPS, 12.0, 0.02),
    Case(STEPS, 50.0, 0.02),
    Case(replace(P4, event_loop=EventLoopCosts(0.1, 0.2, shares_cpu=True)), 30.0, 0.02),
]
VARIED = [
    Case(varied(P4, 0.1), 20.0, 0.04),
    Case(varied(P4, 0.3), 50.0, 0.08),
    Case(varied(FLAT, 0.1), 130.0, 0.04),
]
EVENT_LOOPS = [
    Case(replace(P4, event_loop=EventLoopCosts(0.05, 0.1, shares_cpu=False)), 30.0, 0.06),
    Case(replace(P4, event_loop=EventLoopCosts(0.6, 0.5, shares_cpu=False)), 30.0, 0.06),
]


@pytest.mark.slow
@pytest.mark.parametrize("multiple", [1.05, 1.18, 2.0])
@pytest.mark.parametrize("case", PLAIN)
def test_beyond_its_rate_a_replica_answers_what_its_curve_says(case, multiple):
    """The curve once said that a P4 answers 30% in time at 1.18 times its rate; it is 92%."""
    check(case, multiple)


@pytest.mark.slow
@pytest.mark.parametrize("multiple", [1.1, 1.5])
@pytest.mark.parametrize("case", [*VARIED, *EVENT_LOOPS])
def test_so_does_one_behind_an_event_loop_or_with_batch_times_that_vary(case, multiple):
    """At three times the rate, up to a tenth of it less is in time: not all refusals are free."""
    check(case, multiple)


def check(case: Case, multiple: float) -> None:
    """Compare what is in time, as multiples of the rate within the SLA."""
    template = case.scenario()
    curve = template.load_lateness_curve
    rate_per_s = multiple * curve.sla_rate_per_s
    measured = multiple * in_time(template, rate_per_s)
    assert multiple * curve.service_level(rate_per_s) == pytest.approx(measured, abs=case.tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("case", [PLAIN[0], PLAIN[5]])
def test_a_replica_that_serves_late_answers_nearly_all_late_beyond_its_rate(case):
    template = case.scenario(serve_late=True)
    curve = template.load_lateness_curve
    assert curve.overload_levels == ()
    rate_per_s = 1.5 * curve.sla_rate_per_s
    assert curve.service_level(rate_per_s) < 0.05
    assert in_time(template, rate_per_s) < 0.05
