from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.simulator.arena import (
    GOAL,
    MAX_TIMES_PEAK,
    Load,
    Score,
    best_in_hindsight,
    cheapest_at_goal,
    frontier,
    held_interval,
    near_goal,
    score,
    tune_and_judge,
)
from autoscaler.simulator.autoscalers.registry import choose
from autoscaler.simulator.scenario import Scenario
from autoscaler.simulator.start_time import StartTime
from policy.batching_policy import BatchingPolicy
from policy.objective import ServiceLevelObjective
from policy.profile import Profile

PROFILE = Profile("model", "device", np.linspace(20.0, 60.0, 8), np.linspace(5.0, 9.0, 8))
COUNTS = np.rint(300 + 150 * np.sin(np.arange(300) / 90))
(PEAK,) = choose("peak")


def scenario(counts=COUNTS, **options):
    return Scenario(
        PROFILE,
        ServiceLevelObjective(200, 99),
        counts,
        batching=BatchingPolicy.from_control_limit(1, 8),
        **{"start_time": StartTime(10.0), **options},
    )


def at(cost, held):
    return Score(PEAK, held, (held, held), cost, cost, None, 0.0)


SCORES = st.lists(
    st.builds(at, st.floats(0.5, 5), st.floats(0.8, 1.0)),
    min_size=1,
    max_size=12,
    unique_by=lambda s: s.over_oracle,
)


@given(SCORES, st.integers(1, 6))
def test_the_cheapest_at_the_goal_is_judged_with_those_near_it(scores, count):
    best, near = cheapest_at_goal(scores), near_goal(scores, count)
    reaching = [s for s in scores if s.held >= GOAL]
    if reaching:
        assert best.over_oracle == min(s.over_oracle for s in reaching)
    else:
        assert best.held == max(s.held for s in scores)
    assert best in near
    assert len({id(s) for s in near}) == len(near) <= count
    assert [s.over_oracle for s in near] == sorted(s.over_oracle for s in near)
    for one in frontier(scores):
        assert not any(s.over_oracle <= one.over_oracle and s.held > one.held for s in scores)


def test_only_windows_that_the_oracle_holds_and_that_have_requests_count():
    load = Load("load", scenario(np.r_[COUNTS[:240], np.zeros(60)]))
    oracle = load.oracle()
    late = replace(oracle, in_time=np.where(np.arange(300) < 60, 0.0, oracle.in_time))
    assert score(PEAK, late, oracle, oracle.paid_replica_s).held == 3 / 4
    assert score(PEAK, oracle, late, oracle.paid_replica_s).held == 1
    same = score(PEAK, oracle, oracle, oracle.paid_replica_s / 2)
    assert (same.over_oracle, same.over_bound, same.energy_over_oracle) == (1.0, 2.0, 1.0)


def test_the_interval_contains_the_share_and_is_a_point_if_all_are_held():
    assert held_interval(np.ones(1440, np.bool_)) == (1.0, 1.0)
    minutes = np.arange(1440)
    scattered, grouped = held_interval(minutes % 10 > 0), held_interval(minutes >= 144)
    for low, high in (scattered, grouped):
        assert low <= 0.9 <= high
    assert scattered[1] - scattered[0] < 0.2 * (grouped[1] - grouped[0])


def test_a_load_begins_with_the_oracles_fleet_and_is_bounded_by_its_peak():
    load = Load("load", scenario())
    assert load.scenario.max_replicas % MAX_TIMES_PEAK == 0
    assert 1 < load.scenario.replicas < load.scenario.max_replicas / MAX_TIMES_PEAK
    assert load.bound_replica_seconds() <= load.oracle().paid_replica_s


@pytest.mark.slow
def test_every_family_is_tuned_on_one_load_and_judged_on_another():
    tune_on, judge_on = (
        Load(name, scenario(COUNTS + more)) for name, more in (("a", 0.0), ("b", 50.0))
    )
    found = tune_and_judge(tune_on, judge_on, ("mdc", "peak"), workers=2)
    assert [tuned.family for tuned in found] == ["mdc", "peak"]
    for tuned in found:
        assert tuned.chosen in tuned.judged
        assert tuned.published in tuned.judged
        assert tuned.published.choice.name == tuned.family
        assert all(one.over_bound >= one.over_oracle > 0 for one in tuned.judged)


@pytest.mark.slow
def test_the_best_in_hindsight_holds_no_less_and_no_setting_that_does_is_cheaper():
    load = Load("day", scenario())
    ours, tuned, best = best_in_hindsight(load, workers=2)
    assert ours.choice.name == tuned.choice.entry.name == "sojourn"
    assert tuned.over_oracle <= ours.over_oracle
    assert min(tuned.held, best.held) >= ours.held
    oracle = load.oracle()
    for name in ("peak", "mdc:1.2", "hpa:0.7"):
        (choice,) = choose(name)
        other = score(choice, load.measure(choice), oracle, 1.0)
        assert other.held < ours.held or other.over_oracle >= best.over_oracle
