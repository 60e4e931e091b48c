"""A start split into phases, in virtual time."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.models.startup_timings import PHASES, StartupTimings, process_busy_s


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


def test_a_phase_within_another_counts_once():
    clock = Clock()
    split = StartupTimings(2.0, clock)
    clock.now_s += 1
    with split.phase("model"):
        clock.now_s += 3
        with split.phase("imports"):
            clock.now_s += 5
            with split.phase("weights"):
                clock.now_s += 7
        clock.now_s += 11
    split.ready()
    clock.now_s += 1000
    times_s = split.seconds()
    assert times_s["process"] == 2
    assert (times_s["model"], times_s["imports"], times_s["weights"]) == (14, 5, 7)
    assert times_s["rest"] == 1
    assert split.total_s == 29


def test_a_phase_that_fails_still_ends():
    clock = Clock()
    split = StartupTimings(clock=clock)

    def load():
        clock.now_s += 2
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), split.phase("weights"):
        load()
    clock.now_s += 4
    split.ready()
    assert (split.seconds()["weights"], split.seconds()["rest"]) == (2, 4)


steps = st.recursive(
    st.integers(0, 9),
    lambda inner: st.tuples(st.sampled_from(PHASES), st.lists(inner, max_size=3)),
    max_leaves=15,
)


@given(st.lists(steps, max_size=5), st.integers(0, 5))
def test_the_phases_add_up_to_the_total(plan, process_s):
    clock = Clock()
    split = StartupTimings(process_s, clock)

    def run(step):
        if isinstance(step, int):
            clock.now_s += step
            return
        name, inner = step
        with split.phase(name):
            for part in inner:
                run(part)

    for step in plan:
        run(step)
    split.ready()
    assert split.total_s == process_s + clock.now_s - 100
    assert sum(split.seconds().values()) == split.total_s


def test_a_process_was_not_busy_for_longer_than_it_exists():
    busy_s = process_busy_s()
    assert busy_s > 0
    begin_s, again_s = time.monotonic(), process_busy_s()
    assert again_s >= busy_s
    assert process_busy_s() - again_s <= time.monotonic() - begin_s + 0.1
