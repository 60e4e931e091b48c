import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.simulator import tuning
from autoscaler.simulator.arena import Load, Outcome, Score
from autoscaler.simulator.scenario import Scenario
from autoscaler.simulator.start_time import StartTime
from autoscaler.simulator.tuning import GOAL, Tuner, beyond, cheapest_at_goal, frontier, near_goal
from policy.batching_policy import BatchingPolicy
from policy.objective import ServiceLevelObjective
from policy.profile import Profile

PROFILE = Profile("model", "device", np.linspace(20.0, 60.0, 8))


def at(cost: float, held: float, name: str = "") -> Score:
    outcome = Outcome(name or f"{cost} {held}", name, "", held, cost, None, 0.0)
    return Score(outcome, held, (held, held), cost, cost, None)


SCORES = st.lists(
    st.builds(at, st.floats(0.5, 5), st.floats(0.8, 1.0)),
    min_size=1,
    max_size=12,
    unique_by=lambda s: s.over_oracle,
)


def load(name: str, phase: float, seconds: int = 300) -> Load:
    counts = np.rint(250 + 200 * np.sin(phase + np.arange(seconds) / 60))
    return Load(
        name,
        Scenario(
            PROFILE,
            ServiceLevelObjective(200, 99),
            counts,
            batching=BatchingPolicy.from_control_limit(1, 8),
            start_time=StartTime(10.0, 0.3),
        ),
    )


@settings(max_examples=40)
@given(SCORES)
def test_the_cheapest_at_the_goal_is_chosen_or_else_the_one_that_holds_most(scores) -> None:
    best = cheapest_at_goal(scores)
    reaching = [s for s in scores if s.held >= GOAL]
    if reaching:
        assert best.over_oracle == min(s.over_oracle for s in reaching)
    else:
        assert best.held == max(s.held for s in scores)


@settings(max_examples=40)
@given(SCORES, st.integers(1, 6))
def test_those_near_the_goal_include_the_best_and_are_as_many_as_asked_at_most(
    scores, count
) -> None:
    near = near_goal(scores, count)
    assert cheapest_at_goal(scores) in near
    assert len({id(s) for s in near}) == len(near) <= count
    assert [s.over_oracle for s in near] == sorted(s.over_oracle for s in near)


@settings(max_examples=40)
@given(SCORES)
def test_no_score_dominates_one_of_the_frontier(scores) -> None:
    for one in frontier(scores):
        assert not any(s.over_oracle <= one.over_oracle and s.held > one.held for s in scores)


def test_settings_that_cost_more_are_judged_even_if_nothing_was_missed() -> None:
    scores = [at(1.0, 0.97), at(1.2, 1.0), at(1.21, 1.0), at(1.5, 1.0), at(1.6, 1.0)]
    assert [s.over_oracle for s in near_goal(scores, 3)] == [1.0, 1.2, 1.5]


def test_points_that_hold_more_at_the_same_cost_are_beyond_a_curve() -> None:
    ours = [at(1.0, 0.8), at(2.0, 1.0)]
    above, on, below = at(1.5, 0.91), at(1.5, 0.9), at(1.5, 0.89)
    assert beyond([above, on, below, at(3.0, 1.0), at(0.5, 0.7)], ours) == [above]


def test_what_is_cheaper_than_a_whole_curve_and_holds_no_less_is_beyond_it() -> None:
    ours = [at(1.3, 1.0)]
    assert beyond([at(1.1, 1.0), at(1.1, 0.99), at(1.3, 1.0)], ours) == [at(1.1, 1.0)]
    # A family is not beyond itself.
    assert beyond(ours, ours) == []


@pytest.mark.slow
def test_every_family_is_tuned_on_one_load_and_judged_on_others() -> None:
    told = []
    found = Tuner(load("a", 0.0), [load("b", 1.0), load("c", 2.0)], ("mdc", "peak", "hpa")).run(
        lambda *now: told.append(now)
    )
    assert (found.tune_on, found.judge_on) == ("a", ("b", "c"))
    assert [tuned.family for tuned in found.families] == ["mdc", "peak", "hpa"]
    for tuned in found.families:
        assert tuned.chosen in tuned.finalists
        for number, scores in enumerate(tuned.judged):
            assert [s.outcome.name for s in scores] == [c.name for c in tuned.finalists]
            assert tuned.chosen_on(number).outcome.name == tuned.chosen.name
            assert tuned.published_on(number).outcome.name == tuned.family
    assert all(0.5 < bound <= 1 for bound in found.bounds_over_oracle)
    shares = [done for _, done in told]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert found.beyond(0) == []
    assert all(s.outcome.name.startswith(("mdc", "hpa")) for s in found.beyond(0, "peak"))


@pytest.mark.slow
def test_a_large_grid_is_screened_on_the_busiest_part_of_a_long_load(monkeypatch) -> None:
    monkeypatch.setattr(tuning, "SCREENED_ABOVE_S", 200)
    store: dict[tuple[str, str], Outcome] = {}
    Tuner(load("a", 0.0), [load("b", 1.0)], ("peak", "sojourn"), store=store).run()
    runs = [(where, name.split(":")[0]) for where, name in store]
    assert runs.count(("a, busiest 60 s", "peak")) == 30
    assert runs.count(("a", "peak")) <= 5
    assert runs.count(("a", "sojourn")) == 5
    assert runs.count(("b", "peak")) <= 4  # with the published setting
