import dataclasses
import math
import re
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from autoscaler.reports import AutoscalerSettings
from autoscaler.sizing.try_delays import TryDelays
from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError, InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.table import PolicyTable
from simulator.autoscalers.sojourn import SojournAutoscaler
from simulator.fleet import Failures, StartTime
from simulator.scenario import Scenario
from simulator.simulation import Simulation, simulate

ROOT = Path(__file__).parents[2]
SIZES = np.arange(1, 33)
GOOGLENET_P4 = Profile("googlenet", "tesla-p4", 0.3051 * SIZES + 1.052, 19.90 * SIZES + 19.60)
OBJECTIVE = ServiceLevelObjective(50.0, 99.0)


class Steady:
    name = "steady"

    def __init__(self, replicas):
        self.wanted = replicas
        self.views = []

    def replicas(self, view):
        self.views.append((view, view.reports()))
        return self.wanted


def scenario(**options):
    return Scenario(
        GOOGLENET_P4,
        OBJECTIVE,
        **{
            "counts": np.full(20, 1500.0),
            "batching": BatchingPolicy.from_control_limit(4, 32, 5.0),
            "start_time": StartTime(2.0, 0.3),
            "failures": Failures(per_replica_hour=200.0),
            "replicas": 2,
            "max_replicas": 6,
            **options,
        },
    )


def everything(run):
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in vars(run).items()
        if name != "forecast_per_s"
    }


def test_the_example_of_the_documentation_runs(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    text = (ROOT / "docs/simulator.md").read_text()
    (source,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    exec(source, {})
    service_level, _, paid_replica_s = map(float, capsys.readouterr().out.split())
    assert 0.9 < service_level <= 1
    assert 3501 < paid_replica_s < 20 * 3501


@pytest.mark.parametrize("engine", ["compiled", "live"])
def test_the_same_seed_gives_the_same_run(engine):
    first, second = (simulate(scenario(), Steady(3), engine=engine) for _ in range(2))
    assert everything(first) == everything(second)
    other = simulate(scenario(seed=1), Steady(3), engine=engine)
    assert everything(other) != everything(first)


def test_every_autoscaler_sees_the_same_arrivals():
    logs = []
    for replicas in (2, 6):
        simulation = Simulation(scenario(scale=1.3337), Steady(replicas), log_requests=True)
        run = simulation.run()
        assert run.refused.sum() == 0
        logs.append([entry.sent_s for entry in simulation.request_log()])
    assert logs[0] == logs[1]


def test_an_autoscaler_is_held_to_the_bounds():
    for wanted, expected in ((100, 6), (-5, 2)):
        run = simulate(scenario(min_replicas=2), Steady(wanted))
        assert_array_equal(run.ordered[1:], expected)


def test_an_autoscaler_sees_what_happened():
    autoscaler = Steady(3)
    run = simulate(scenario(failures=Failures()), autoscaler)
    views = [view for view, _ in autoscaler.views]
    assert [view.now_s for view in views] == list(range(1, 21))
    assert_array_equal([view.offered for view in views], run.offered)
    assert sum(view.refused for view in views) == run.refused.sum()
    # Little's law: requests inside = their rate times the mean response time.
    centres_ms = (run.bin_edges_ms[1:] + run.bin_edges_ms[:-1]) / 2
    network_ms = 0.5
    mean_ms = run.histogram @ centres_ms / run.histogram.sum() - network_ms
    inside = np.mean([view.ongoing for view in views])
    assert inside == pytest.approx(1.5 * mean_ms, rel=0.02)


def test_replicas_report_what_live_ones_do():
    settings = AutoscalerSettings(hold_s=33.0)
    autoscaler = Steady(2)
    given = scenario(counts=np.full(5, 9000.0), failures=Failures(), autoscaler_settings=settings)
    run = simulate(given, autoscaler)
    reports = autoscaler.views[-1][1]
    assert len({report.replica_id for report in reports}) == 2
    offered, refused, completed, waiting = (
        sum(getattr(report, name) for report in reports)
        for name in ("offered_total", "refused_total", "completed_total", "queue_length")
    )
    # Two replicas carry 5,900 requests of 9,000: tries at them are refused, and made again.
    assert offered > run.offered.sum()
    assert 0 < run.refused.sum() < refused
    on_device = offered - refused - completed - waiting
    assert 0 <= on_device <= 2 * 32
    for report in reports:
        assert report.answered_total == report.completed_total
        assert 0 <= report.late_total <= report.answered_total
        assert report.objective == OBJECTIVE
        assert (report.full_batch_size, report.full_batch_ms) == (32, GOOGLENET_P4.latency_ms[-1])
        assert report.settings == settings
        assert report.curve == given.load_lateness_curve()
        assert report.time_s == 5.0


def test_an_sla_out_of_reach_is_reported_as_such():
    autoscaler = Steady(1)
    given = scenario(counts=np.array([5.0]), replicas=1)
    simulate(dataclasses.replace(given, objective=ServiceLevelObjective(0.4, 99.0)), autoscaler)
    assert [report.out_of_reach for report in autoscaler.views[0][1]] == [True]


def test_sojourn_keeps_its_sla_through_a_doubled_load():
    counts = np.concatenate([np.full(60, 6000.0), np.full(120, 12_000.0)])
    run = simulate(
        scenario(counts=counts, batching=None, replicas=4, max_replicas=20, failures=Failures()),
        SojournAutoscaler(),
    )
    assert run.name == "sojourn"
    assert 5 <= run.ordered[-1] <= 8
    # While the replicas it ordered start, some are late; not before, and not after.
    late = 1 - run.in_time / run.offered
    assert late[10:60].max() < 0.01
    assert late[-60:].max() < 0.01
    assert np.isfinite(run.forecast_per_s[20:]).all()


def test_by_itself_a_replica_is_as_its_config_makes_it():
    model = scenario(batching=None).replica_model()
    # 50 ms hold four full batches of 10.8 ms: one on the device and three that wait.
    assert model.limits.waiting_room == 3 * 32
    assert model.limits.max_age_ms == pytest.approx(50.0 - GOOGLENET_P4.latency_ms[-1])
    assert isinstance(model.table, PolicyTable)
    assert scenario(batching=None).table is scenario(batching=None).table


def test_energy_is_unknown_where_the_profile_has_none():
    plain = Profile("plain", "device", GOOGLENET_P4.latency_ms)
    given = dataclasses.replace(scenario(), profile=plain)
    assert np.isnan(simulate(given, Steady(2)).energy_j).all()


def test_progress_is_told_to_the_end():
    told = []
    simulate(scenario(counts=np.ones(450)), Steady(2), progress=told.append)
    assert told == sorted(set(told))
    assert told[-1] == 450
    assert 200 <= len(told) <= 226


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"counts": []}, "counts: must be one number for each second"),
        ({"counts": [[1.0]]}, "counts: must be one number for each second"),
        ({"counts": [1.0, -1.0]}, "counts: must be finite and at least 0"),
        ({"counts": [math.nan]}, "counts: must be finite and at least 0"),
        ({"scale": 0.0}, "scale: must be above 0"),
        ({"seed": -1}, "seed: must be a whole number from 0"),
        ({"seed": 1.5}, "seed: must be a whole number from 0"),
        ({"delays": TryDelays()}, "retries must be a number"),
        ({"waiting_room": 0}, "waiting_room: must be a whole number from 1"),
        ({"max_age_ms": -1.0}, "max_age_ms: must be at least 0"),
        ({"replicas": 7}, "replicas: must be a whole number from 1 to 6"),
        ({"min_replicas": 7}, "max_replicas: must be a whole number from 7"),
        ({"routing": "nearest"}, "routing: must be one of random, power_of_two, least_connections"),
        ({"within_second": "lumps"}, "within_second: must be one of uniform, linear"),
        ({"batching": BatchingPolicy.from_control_limit(1, 33)}, "batches of 33"),
    ],
)
def test_a_scenario_that_makes_no_sense_is_told_in_one_line(options, complaint):
    with pytest.raises(InvalidInputError, match=complaint) as caught:
        scenario(**options)
    assert "\n" not in str(caught.value)


def test_a_run_that_makes_no_sense_is_told_in_one_line():
    with pytest.raises(InvalidInputError, match="engine: must be one of compiled, live"):
        simulate(scenario(), Steady(2), engine="diesel")
    with pytest.raises(InvalidInputError, match=r"must return a whole number, not 1\.5"):
        simulate(scenario(), Steady(1.5))
    with pytest.raises(InfeasibleError, match="the shortest batch"):
        dataclasses.replace(scenario(), batching=None, objective=ServiceLevelObjective(1.0, 99.0))
