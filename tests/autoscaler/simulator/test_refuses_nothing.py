"""Below the load that it takes under its SLA, a replica refuses nothing, however it may batch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.simulator.autoscalers.fixed import FixedFleet
from autoscaler.simulator.experiments import least_predicted, poisson_scenario, predict_fixed
from autoscaler.simulator.scenario import Scenario
from autoscaler.simulator.simulation import simulate
from autoscaler.sizing.batch_queue_estimator import BatchQueueEstimator
from autoscaler.sizing.estimators import least_replicas
from policy.baseline_policies import work_conserving
from policy.batcher.limits import ADMISSION_SHARE
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.service_model import service_model
from policy.try_delays import RETRIES, TryDelays

SIZES = np.arange(1, 65)


@st.composite
def latencies_ms(draw):
    """Flat, linear or stepped, as GPUs have it; up to 64 rows."""
    first_ms, row_ms = draw(st.floats(0.5, 20.0)), draw(st.floats(0.0, 2.0))
    step = draw(st.sampled_from([1, 8, 32]))
    rows = draw(st.sampled_from([1, 16, 64]))
    return (first_ms + row_ms * step * np.ceil(SIZES / step))[:rows]


def run_alone(scenario, rate_per_s, requests=2000):
    loaded = poisson_scenario(scenario, rate_per_s, requests)
    return simulate(loaded, FixedFleet(1))


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    latencies_ms(),
    st.floats(2.0, 12.0),
    st.booleans(),
    st.integers(0, 1000),
)
def test_a_third_of_the_load_of_the_sla_is_answered(latency_ms, batches, given_policy, seed):
    """The largest batch may take more time than the SLA, or hardly any of it."""
    profile = Profile("m", "d", latency_ms)
    sla = ServiceLevelObjective(0.6 + batches * latency_ms[0] / ADMISSION_SHARE, 99.0)
    batching = work_conserving(profile) if given_policy else None
    scenario = Scenario(profile, sla, np.ones(1), seed=seed, max_replicas=1, batching=batching)
    curve = scenario.load_lateness_curve()
    if curve is None:
        return
    run = run_alone(scenario, curve.sla_rate_per_s / 3)
    offered = run.offered.sum()
    predicted = predict_fixed(scenario, curve.sla_rate_per_s / 3, 1)
    assert abs(run.in_time.sum() / offered - predicted.service_level) <= 0.005
    assert run.refused.sum() <= 0.005 * offered


@pytest.mark.slow
@pytest.mark.parametrize("rows", [32, 128])
def test_batches_that_do_not_fit_into_the_sla_refuse_nobody(rows):
    """Once, 38% were refused: admission counted full batches of 64, which never ran."""
    profile = Profile("line", "p4", 1.05 + 0.305 * np.arange(1, rows + 1))
    scenario = Scenario(
        profile, ServiceLevelObjective(15.0, 99.0), np.ones(1), batching=work_conserving(profile)
    )
    run = run_alone(scenario, 1000.0, 20_000)
    assert run.refused.sum() == 0
    assert scenario.service.limits.max_batch_size < 40


@pytest.mark.slow
@pytest.mark.parametrize("rows", [32, 64])
@pytest.mark.parametrize("rate_per_s", [1000.0, 20_000.0])
def test_a_plan_and_a_simulation_agree(rows, rate_per_s):
    """Once, a plan counted full batches that no replica runs, and asked for a replica more."""
    profile = Profile("line", "p4", 1.05 + 0.305 * np.arange(1, rows + 1))
    sla, delays = ServiceLevelObjective(15.0, 99.0), TryDelays(retries=RETRIES)
    estimator = BatchQueueEstimator(service_model(profile, sla, delays).profile, delays)
    replicas = least_replicas(estimator, rate_per_s, sla, 1, 100).replicas
    scenario = Scenario(profile, sla, np.ones(1), replicas=replicas, max_replicas=100)
    assert least_predicted(scenario, rate_per_s) == replicas
    loaded = poisson_scenario(scenario, rate_per_s, 60_000)
    assert simulate(loaded, FixedFleet(replicas)).service_level >= 0.99
