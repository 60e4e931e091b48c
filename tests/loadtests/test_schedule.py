import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from loadtests.schedule import Step, parse_shape, poisson_schedule, trace_schedule
from policy.errors import InvalidInputError

duration_s, rate_per_s = st.floats(0.5, 60), st.floats(1, 500)
parts = st.one_of(
    st.builds(Step, duration_s, rate_per_s),
    st.builds(Step, duration_s, rate_per_s, rate_per_s),
)
steps = st.lists(parts, min_size=1, max_size=4)


def test_a_shape_is_parsed_with_its_units():
    assert parse_shape("20s:50, 1.5m:150,500ms:0") == (Step(20, 50), Step(90, 150), Step(0.5, 0))
    assert parse_shape("20s:50-150,1h:9-0") == (Step(20, 50, 150), Step(3600, 9, 0))


@pytest.mark.parametrize(
    "text",
    ["", "20s", "20:50", "0s:50", "20s:50,", "1.2.3s:5", "5s:1-2-3"],
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


@pytest.mark.parametrize("step", [Step(1000, 5, 50), Step(1000, 50, 0)])
def test_arrivals_follow_the_rate_of_a_ramp(step):
    arrivals_s = poisson_schedule([step], seed=2).arrivals_s

    def share_before(time_s):
        x = np.asarray(time_s) / step.duration_s
        integral = step.from_per_s * x + (step.to_per_s - step.from_per_s) * x**2 / 2
        return integral / step.arrival_rate_per_s

    assert stats.kstest(arrivals_s, share_before).pvalue > 0.01


def test_arrivals_are_a_poisson_process_that_the_seed_determines():
    first, again, other = (
        poisson_schedule([Step(100, 200)], seed).arrivals_s for seed in (1, 1, 2)
    )
    assert stats.kstest(np.diff(first), stats.expon(scale=1 / 200).cdf).pvalue > 0.01
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
