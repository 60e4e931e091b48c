import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from autoscaler.simulator.autoscalers.fixed import FixedFleet
from autoscaler.simulator.experiments import least_predicted, poisson_scenario
from autoscaler.simulator.scenario import Scenario
from autoscaler.simulator.simulation import simulate
from autoscaler.sizing.estimators import least_replicas
from autoscaler.sizing.rand_fleet import RandFleet
from autoscaler.sizing.service_estimator import ServiceEstimator
from policy.baseline_policies import work_conserving
from policy.errors import InfeasibleError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.service_model import service_model
from policy.try_delays import RETRIES, TryDelays
from tests.support.profiles import GOOGLENET_P4

DELAYS = TryDelays(retries=RETRIES)
SIZES = np.arange(1, 65)


@st.composite
def services(draw):
    """Draw a profile, flat, linear, stepped or flat at first as GPUs have it, and an SLA."""
    first_ms, row_ms = draw(st.floats(5.0, 20.0)), draw(st.floats(0.0, 2.0))
    step, rows = draw(st.sampled_from([1, 8, 32])), draw(st.sampled_from([1, 8, 64]))
    latency_ms = (first_ms + row_ms * step * np.floor(SIZES / step))[:rows]
    if draw(st.booleans()):
        latency_ms = np.maximum(latency_ms, latency_ms[min(8, rows) - 1])
    energy_mj = 20 + 20 * np.arange(1.0, rows + 1) if draw(st.booleans()) else None
    # The largest batch may take more time than the SLA, or hardly any of it.
    sla_ms = 0.6 + draw(st.floats(2.2, 12.0)) * latency_ms[0]
    return Profile("m", "d", latency_ms, energy_mj), ServiceLevelObjective(sla_ms, 99.0)


@pytest.mark.slow
@settings(max_examples=8, phases=[Phase.generate])
@given(services(), st.sampled_from([0.3, 0.6, 1.5, 3.0]), st.sampled_from([1, 12]))
def test_a_prediction_is_what_a_simulation_finds(service, load, replicas):
    profile, sla = service
    scenario = Scenario(profile, sla, np.ones(1), replicas=replicas)
    rate_per_s = load * replicas * scenario.load_lateness_curve.sla_rate_per_s
    run = simulate(poisson_scenario(scenario, rate_per_s, 400_000), FixedFleet(replicas))
    found = scenario.estimator.predict(rate_per_s, replicas, sla)
    # Under overload, tries at different replicas are not quite independent.
    overloaded = load > 1
    assert found.service_level == pytest.approx(
        run.service_level, abs=0.015 if overloaded else 0.005
    )
    assert found.answered_percentile_ms is not None
    # To save energy, replicas wait, for how long depends on the rate that each estimates.
    error = 0.02 if profile.energy_mj is None else 0.06
    for percentile in () if overloaded else (50.0, 99.0):
        simulated_ms = run.response_percentile_ms(percentile)
        assert found.answered_percentile_ms(percentile) == pytest.approx(simulated_ms, rel=error)
    if found.mean_power_w is not None:
        power_w = float(run.energy_j.mean())
        assert found.mean_power_w == pytest.approx(power_w, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "rate_per_s"), [(32, 20_000.0), (64, 1000.0)])
def test_a_plan_keeps_the_sla_with_the_fewest_replicas(rows, rate_per_s):
    """Once, a plan counted full batches that no replica runs, and asked for a replica more."""
    profile = Profile("line", "p4", 1.05 + 0.305 * np.arange(1, rows + 1))
    sla = ServiceLevelObjective(15.0, 99.0)
    estimator = ServiceEstimator(service_model(profile, sla, DELAYS))
    replicas = least_replicas(estimator, rate_per_s, sla, 100).replicas
    scenario = Scenario(profile, sla, np.ones(1), replicas=replicas, max_replicas=100)
    assert least_predicted(scenario, rate_per_s) == replicas
    loaded = poisson_scenario(scenario, rate_per_s, 60_000)
    assert simulate(loaded, FixedFleet(replicas)).service_level >= 0.99
    if replicas > 1:
        assert not estimator.predict(rate_per_s, replicas - 1, sla).meets(sla)


def test_batches_that_do_not_fit_into_the_sla_refuse_nobody():
    """Once, 38% were refused: admission counted full batches of 64, which never ran."""
    profile = Profile("line", "p4", 1.05 + 0.305 * np.arange(1, 129))
    scenario = Scenario(
        profile, ServiceLevelObjective(15.0, 99.0), np.ones(1), batching=work_conserving(profile)
    )
    run = simulate(poisson_scenario(scenario, 1000.0, 20_000), FixedFleet(1))
    assert run.refused.sum() == 0
    assert scenario.service.limits.max_batch_size < 40


def test_a_replica_does_not_go_on_refusing_after_a_burst():
    """Once, 38% were refused for ever after more than 1% had been, by chance.

    Replicas set time aside for attempts elsewhere, and counted what they refused for it as well.
    """
    scenario = Scenario(
        Profile("m", "d", np.full(8, 1.0)),
        ServiceLevelObjective(2.6, 99.0),
        np.ones(1),
        replicas=2,
    )
    rate_per_s = 0.7 * 2 * scenario.load_lateness_curve.sla_rate_per_s
    run = simulate(poisson_scenario(scenario, rate_per_s, 60_000), FixedFleet(2))
    assert run.service_level > 0.99


def test_an_sla_out_of_reach_says_what_is_in_reach():
    sla = ServiceLevelObjective(1.3, 99.0)
    estimator = ServiceEstimator(service_model(GOOGLENET_P4, sla, DELAYS))
    with pytest.raises(InfeasibleError, match=r"out of reach: .*, and 99% within"):
        least_replicas(estimator, 100.0, sla)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("profile", "sla_ms"),
    [(GOOGLENET_P4, 10.0), (Profile("m", "d", np.full(8, 10.0)), 25.0)],
)
def test_a_plan_needs_as_many_replicas_as_the_live_autoscaler_orders(profile, sla_ms):
    sla = ServiceLevelObjective(sla_ms, 99.0)
    service = service_model(profile, sla, DELAYS)
    capacity_per_s = 1e3 * service.limits.max_batch_size / service.limits.latency_ms[-1]
    live = RandFleet(service.curve, capacity_per_s, sla_ms, DELAYS)
    for load in (0.6, 2.5, 9.0, 40.0):
        rate_per_s = load * service.curve.sla_rate_per_s
        planned = least_replicas(ServiceEstimator(service), rate_per_s, sla).replicas
        ordered = live.replicas_needed(rate_per_s, sla.late_share_allowed)
        assert planned == ordered
