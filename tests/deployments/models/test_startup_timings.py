import time
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from deployments.models.startup_timings import PHASES, StartupTimings, process_busy_s


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


def test_a_phase_within_another_counts_once_and_ends_even_if_it_fails():
    clock = Clock()
    split = StartupTimings(2.0, clock)
    clock.now_s += 1
    with suppress(ValueError), split.phase("model"):
        clock.now_s += 3
        with split.phase("imports"):
            clock.now_s += 5
            with split.phase("weights"):
                clock.now_s += 7
                raise ValueError
    clock.now_s += 11
    split.ready()
    clock.now_s += 1000
    spent_s = {name: time_s for name, time_s in split.seconds().items() if time_s}
    assert spent_s == {"process": 2, "model": 3, "imports": 5, "weights": 7, "rest": 12}
    assert split.total_s == 29


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
