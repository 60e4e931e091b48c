import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from loadtests.schedule import (
    NAMED_SHAPES,
    Ramp,
    Step,
    Wave,
    named_shape,
    parse_shape,
    poisson_schedule,
    trace_schedule,
)
from policy.errors import InvalidInputError

duration_s, rate_per_s = st.floats(0.5, 60), st.floats(1, 500)
parts = st.one_of(
    st.builds(Step, duration_s, rate_per_s),
    st.builds(Ramp, duration_s, rate_per_s, rate_per_s),
    st.builds(Wave, duration_s, rate_per_s, rate_per_s),
)
steps = st.lists(parts, min_size=1, max_size=4)


def test_a_shape_is_parsed_with_its_units():
    assert parse_shape("20s:50, 1.5m:150,500ms:0") == (Step(20, 50), Step(90, 150), Step(0.5, 0))
    assert parse_shape("20s:50-150,10m:200~20") == (Ramp(20, 50, 150), Wave(600, 200, 20))


@pytest.mark.parametrize(
    "text",
    ["", "20s", "20:50", "20s:-1", "0s:50", "20s:50,", "1.2.3s:5", "5s:1-", "5s:1-2-3", "spikes"],
)
def test_malformed_shape_is_refused(text):
    with pytest.raises(InvalidInputError, match=r"20s:50|duration"):
        parse_shape(text)


@given(steps, st.integers(0, 2**32))
def test_arrivals_ascend_within_the_steps_and_have_their_rates(steps, seed):
    # Of so many, some come.
    assume(sum(step.duration_s * step.arrival_rate_per_s for step in steps) > 50)
    schedule = poisson_schedule(steps, seed)
    arrivals_s = schedule.arrivals_s
    assert np.all(np.diff(arrivals_s) >= 0)
    assert np.all((arrivals_s >= 0) & (arrivals_s <= schedule.duration_s))
    counts, _ = np.histogram(arrivals_s, schedule.step_starts_s)
    for step, count in zip(steps, counts, strict=True):
        expected = step.duration_s * step.arrival_rate_per_s
        assert abs(count - expected) <= 7 * np.sqrt(expected) + 7


@pytest.mark.parametrize("part", [Ramp(1000, 5, 50), Ramp(1000, 50, 0), Wave(1000, 40, 10)])
def test_arrivals_follow_the_rate_within_a_part(part):
    """Their distribution is the integral of the rate, by the trapezoidal rule."""
    shares = np.linspace(0, 1, 10_001)
    rates = part.rate_per_s(shares)
    integral = np.concatenate([[0.0], np.cumsum((rates[1:] + rates[:-1]) / 2)])
    arrivals_s = poisson_schedule([part], seed=2).arrivals_s

    def share_before(time_s):
        return np.interp(time_s / part.duration_s, shares, integral / integral[-1])

    assert stats.kstest(arrivals_s, share_before).pvalue > 0.01
    assert rates.mean() == pytest.approx(part.arrival_rate_per_s, rel=1e-3)


@pytest.mark.parametrize("name", NAMED_SHAPES)
def test_named_shapes_last_as_long_as_asked_and_reach_the_peak(name):
    shape = named_shape(name, 60, 50, 200)
    assert sum(part.duration_s for part in shape) == pytest.approx(60)
    arrivals_s = poisson_schedule(shape, seed=0).arrivals_s
    in_seconds, _ = np.histogram(arrivals_s, np.arange(61))
    assert in_seconds[0] < 90
    assert bool(in_seconds.max() > 150) is (name != "constant")


def test_gaps_are_exponential():
    arrivals_s = poisson_schedule([Step(100, 200)], seed=1).arrivals_s
    assert stats.kstest(np.diff(arrivals_s), stats.expon(scale=1 / 200).cdf).pvalue > 0.01


def test_the_seed_determines_the_schedule():
    step = Step(10, 50)
    first, again, other = (poisson_schedule([step], seed).arrivals_s for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("rate_per_s", [0.0, 1e9])
def test_no_request_or_too_many_are_refused(rate_per_s):
    with pytest.raises(InvalidInputError, match="at most 20000000"):
        poisson_schedule([Step(30, rate_per_s)], seed=0)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=20), st.sampled_from([0.5, 1.0, 4.0]))
def test_trace_is_replayed_exactly(counts, speedup):
    counts = np.array([*counts, 1])
    schedule = trace_schedule(counts, speedup, seed=3)
    replayed, _ = np.histogram(schedule.arrivals_s * speedup, np.arange(counts.size + 1))
    assert np.array_equal(replayed, counts)
    assert schedule.duration_s == pytest.approx(counts.size / speedup)


def test_a_trace_can_be_cut_short():
    schedule = trace_schedule(np.array([10, 20, 30, 40]), speedup=2.0, seed=0, duration_s=1.0)
    assert schedule.arrivals_s.size == 30
    assert schedule.duration_s == 1.0
