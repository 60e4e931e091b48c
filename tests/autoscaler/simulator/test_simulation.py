import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from autoscaler.settings import AutoscalerSettings
from autoscaler.simulator.autoscalers.fixed import FixedFleet
from autoscaler.simulator.autoscalers.registry import choose
from autoscaler.simulator.experiments import compare, poisson_scenario, run_fixed
from autoscaler.simulator.scenario import Failures, Scenario
from autoscaler.simulator.simulation import Simulation, simulate
from autoscaler.simulator.start_time import StartTime
from autoscaler.sizing.service_estimator import ServiceEstimator
from policy.batching_policy import BatchingPolicy
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from tests.support.autoscaling.fleet_views import Scripted
from tests.support.profiles import GOOGLENET_P4

OBJECTIVE = ServiceLevelObjective(50.0, 99.0)


def scenario(**options):
    return Scenario(
        **{
            "profile": GOOGLENET_P4,
            "objective": OBJECTIVE,
            "counts": np.full(20, 1500.0),
            "batching": BatchingPolicy.from_control_limit(4, 32, 5.0),
            "start_time": StartTime(2.0, 0.3),
            "failures": Failures((5.0, 11.0)),
            "replicas": 2,
            "max_replicas": 6,
            **options,
        },
    )


def content(run):
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in vars(run).items()
        if name != "forecast_per_s"
    }


@pytest.mark.slow
def test_the_seed_determines_the_run_and_not_the_autoscaler_the_arrivals():
    def logged(seed, replicas):
        simulation = Simulation(
            scenario(counts=np.full(20, 2000.5), seed=seed),
            Scripted((0, replicas)),
            log_requests=True,
        )
        run = simulation.run()
        assert run.refused.sum() == 0
        return content(run), [entry.sent_s for entry in simulation.request_log()]

    first, again, more, other = (logged(*each) for each in ((0, 3), (0, 3), (0, 6), (1, 3)))
    assert first == again
    assert first[1] == more[1] != other[1]


def test_an_autoscaler_is_kept_within_the_bounds():
    for wanted, expected in ((100, 6), (-5, 2)):
        run = simulate(scenario(min_replicas=2), Scripted((0, wanted)))
        assert_array_equal(run.ordered[1:], expected)


def test_the_views_agree_with_the_run():
    autoscaler = Scripted((0, 3))
    run = simulate(scenario(failures=Failures()), autoscaler)
    views = autoscaler.views
    assert [view.now_s for view in views] == list(range(1, 21))
    assert_array_equal([view.offered for view in views], run.offered)
    # Little's law: mean number in the replicas = arrival rate times mean time in them.
    centers_ms = (run.bin_edges_ms[1:] + run.bin_edges_ms[:-1]) / 2
    network_ms = 0.5
    mean_ms = run.histogram @ centers_ms / run.histogram.sum() - network_ms
    inside = np.mean([view.ongoing for view in views])
    assert inside == pytest.approx(1.5 * mean_ms, rel=0.02)


def test_replicas_report_as_live_ones_do():
    settings = AutoscalerSettings(scale_down_delay_s=33.0)
    autoscaler = Scripted((0, 2))
    given = scenario(counts=np.full(5, 9000.0), failures=Failures(), autoscaler_settings=settings)
    run = simulate(given, autoscaler)
    reports = autoscaler.views[-1].reports()
    assert len({report.replica_id for report in reports}) == 2
    offered, refused, answered, waiting = (
        sum(getattr(report, name) for report in reports)
        for name in ("offered_total", "refused_total", "answered_total", "queue_length")
    )
    # Two replicas have capacity for 5,900 of 9,000 requests/s, so tries are refused and repeated.
    assert offered > run.offered.sum()
    assert 0 < run.refused.sum() < refused
    on_device = offered - refused - answered - waiting
    assert 0 <= on_device <= 2 * 32
    for report in reports:
        assert 0 <= report.late_total <= report.answered_total
        assert report.objective == OBJECTIVE
        assert (report.full_batch_size, report.full_batch_ms) == (32, GOOGLENET_P4.latency_ms[-1])
        assert report.settings == settings
        assert report.curve == given.load_lateness_curve
        assert report.time_s == 5.0


def test_an_infeasible_sla_is_reported_as_such():
    autoscaler = Scripted((0, 1))
    given = scenario(counts=np.array([5.0]), replicas=1)
    simulate(dataclasses.replace(given, objective=ServiceLevelObjective(0.4, 99.0)), autoscaler)
    assert [report.out_of_reach for report in autoscaler.views[0].reports()] == [True]


def test_a_bad_run_is_rejected():
    with pytest.raises(InvalidInputError, match=r"must return a whole number, not 1\.5"):
        simulate(scenario(), SimpleNamespace(name="half", replicas=lambda view: 1.5))


def test_a_replica_draws_its_idle_power_for_all_the_time_that_it_is_paid_for():
    # Here a batch draws no more than the idle device does.
    profile = dataclasses.replace(
        GOOGLENET_P4, energy_mj=8.0 * GOOGLENET_P4.latency_ms, idle_power_w=8.0
    )
    script = enumerate(10 * (6, 1, 4, 2, 6))
    up_and_down = Scripted(*((2 * pair, wanted) for pair, wanted in script))
    failures = Failures((2.0, 7.0), failed_start_share=0.2, full_cluster=((3.0, 6.5, 3),))
    run = simulate(scenario(profile=profile, failures=failures), up_and_down)
    assert run.energy_j.sum() == pytest.approx(8.0 * run.paid_replica_s, rel=1e-9)
    assert run.energy_j.max() > 2 * run.energy_j.min()


@pytest.fixture(scope="module")
def under_a_ceiling():
    """Large batches save most of the energy; 64 W are too little for the SLA of the second half."""
    sizes = np.arange(1, 9)
    return Scenario(
        Profile("m", "d", 2 + 0.5 * sizes, 200 + 5.0 * sizes, idle_power_w=4.0),
        ServiceLevelObjective(10.0, 99.0),
        np.repeat([500.0, 1500.0], 120),
        within_second="uniform",
        start_time=StartTime(2.0),
        power_limit_w=64.0,
        max_replicas=10,
    )


@pytest.mark.slow
def test_a_fleet_under_a_ceiling_is_as_planned(under_a_ceiling):
    scenario = poisson_scenario(under_a_ceiling, 1500.0, 200_000)
    fleet = scenario.under_power_limit(1500.0, 3)
    assert fleet.service.client_sla.response_time_ms > 10
    plan = ServiceEstimator(fleet.service).predict(1500.0, fleet.replicas, scenario.objective)
    (run,) = run_fixed(scenario, fleet.replicas).runs
    power_w = run.energy_j.sum() / scenario.seconds
    assert power_w == pytest.approx(plan.mean_power_w, rel=0.02)
    assert power_w <= 1.02 * 64.0
    assert run.service_level == pytest.approx(plan.service_level, abs=0.01)
    p99_ms = run.response_percentile_ms(99)
    assert p99_ms == pytest.approx(plan.answered_percentile_ms(99), rel=0.05)


@pytest.mark.slow
def test_on_a_trace_the_ceiling_is_kept_and_answers_are_later(under_a_ceiling):
    free = dataclasses.replace(under_a_ceiling, power_limit_w=None)
    limited, unlimited = (
        compare(scenario, choose("sojourn")).runs[0] for scenario in (under_a_ceiling, free)
    )
    assert limited.most_power_w <= 1.05 * 64.0 < unlimited.most_power_w
    assert limited.ready[-1] <= unlimited.ready[-1]
    late_ms = limited.response_percentile_ms(99), unlimited.response_percentile_ms(99)
    assert late_ms[0] > 10 > late_ms[1]
    assert limited.service_level < unlimited.service_level


def test_windows_without_requests_are_not_counted():
    """Two of five minutes have requests, and one of these is overloaded."""
    counts = np.repeat([50.0, 0.0, 0.0, 500.0, 0.0], 60)
    given = Scenario(
        Profile("model", "device", np.array([10.0])),
        ServiceLevelObjective(100, 99),
        counts,
        batching=BatchingPolicy.from_control_limit(1, 1),
        within_second="uniform",
    )
    run = simulate(given, FixedFleet(1))
    assert run.judged().tolist() == [True, False, False, True, False]
    assert run.compliant_windows == 0.5
    empty = simulate(dataclasses.replace(given, counts=np.zeros(60)), FixedFleet(1))
    assert empty.compliant_windows == 1
