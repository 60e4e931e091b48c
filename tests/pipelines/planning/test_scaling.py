"""The divisions of all rates, and when they are put into force."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.planning.scaling import DivisionTable, StageScaler, solve_divisions
from pipelines.planning.tandem import Setting, simulate_response_ms
from pipelines.steps import Each, Stage
from policy.errors import InfeasibleError, InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile

SLA = ServiceLevelObjective(60.0, 99.0)


def stage(name, fixed_ms, size=4, place="process"):
    latency_ms = [fixed_ms + 0.5 * batch for batch in range(1, size + 1)]
    profile = Profile("m", "d", latency_ms)
    return Stage(abs, name, batch_size=size, place=place, profile=profile)


STEPS = [stage("light", 1.0), Each(stage("heavy", 8.0), expected_items=2)]


@pytest.fixture(scope="module")
def table():
    return solve_divisions(STEPS, SLA, max_workers=6, requests=10_000)


def test_every_division_keeps_the_sla_at_its_rate(table):
    for rate_per_s, division in zip(table.rates_per_s, table.divisions, strict=True):
        chosen = {
            part.name: Setting(division[part.name], part.first_policy())
            for part in (STEPS[0], STEPS[1].branch)
        }
        times_ms = simulate_response_ms(STEPS, chosen, rate_per_s, requests=10_000)
        assert np.percentile(times_ms, 99) <= 60.0


def test_a_shortage_in_one_stage_is_not_paid_for_in_the_others(table):
    assert table.divisions[0] == {"light": 1, "heavy": 1}
    assert table.divisions[-1] == {"light": 1, "heavy": 5}
    assert max(sum(division.values()) for division in table.divisions) == 6


def test_a_rate_has_the_division_that_carries_it(table):
    for rate_per_s in (0.0, table.rates_per_s[3], 0.999 * table.rates_per_s[3]):
        at = np.searchsorted(table.rates_per_s, rate_per_s)
        assert table.lookup(rate_per_s) == table.divisions[at]
    assert table.lookup(1e9) == table.divisions[-1]


def test_what_cannot_be_scaled():
    with pytest.raises(InvalidInputError, match="at least 2, one for each stage, not 1"):
        solve_divisions(STEPS, SLA, 1)
    with pytest.raises(InfeasibleError, match="no number of workers"):
        solve_divisions(STEPS, ServiceLevelObjective(5.0, 99.0), 6, requests=10_000)
    for margin, hold_s in [(0.9, 1.0), (1.0, -1.0)]:
        with pytest.raises(InvalidInputError):
            StageScaler(DivisionTable((1.0,), ({"a": 1},)), margin, hold_s)


def test_a_stage_on_the_event_loop_stays_one_worker():
    table = solve_divisions([stage("a", 1.0, 1, "loop")], SLA, 5, requests=10_000)
    assert {division["a"] for division in table.divisions} == {1}


@settings(max_examples=30)
@given(loads=st.lists(st.integers(0, 40), min_size=1, max_size=60))
def test_more_at_once_and_fewer_after_the_hold(loads):
    """Workers follow the highest of the latest needs."""
    table = DivisionTable(tuple(range(1, 31)), tuple({"a": n} for n in range(1, 31)))
    scaler = StageScaler(table, margin=1.5, hold_s=10.0)
    needs = [max(1, min(30, int(np.ceil(1.5 * load)))) for load in loads]
    for second, load in enumerate(loads):
        assert scaler.decide(float(second), load) == {
            "a": max(needs[max(0, second - 10) : second + 1])
        }
