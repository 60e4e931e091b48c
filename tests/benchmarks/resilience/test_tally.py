import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.resilience.tally import (
    WINDOW_S,
    Outcome,
    Request,
    outcome_of,
    recovered_s,
    tally,
)

SLA_S = 0.5


def answered(due_s, took_s=0.1):
    return Request(due_s, due_s + took_s, Outcome.RIGHT, 200)


@pytest.mark.parametrize(
    ("status", "right", "took_s", "outcome"),
    [
        (200, True, 9.0, Outcome.RIGHT),
        (200, False, 0.1, Outcome.WRONG),
        (503, False, 0.5, Outcome.REFUSED),
        (504, False, 0.1, Outcome.REFUSED),
        (503, False, 0.6, Outcome.FAILED),
        (500, False, 0.1, Outcome.FAILED),
        (404, False, 0.1, Outcome.FAILED),
    ],
)
def test_an_answer_is_judged_by_status_content_and_time(status, right, took_s, outcome: Outcome):
    assert outcome_of(status, right, took_s, SLA_S) is outcome


@given(st.lists(st.sampled_from(list(Outcome)), max_size=30), st.integers(0, 5))
def test_every_request_is_counted_once(outcomes: list[Outcome], doubled):
    requests = [Request(float(n), n + 0.1, one) for n, one in enumerate(outcomes)]
    found = tally(requests, doubled, 0.0, SLA_S, 99)
    counts = (found.right, found.wrong, found.refused, found.failed, found.lost)
    assert sum(counts) == found.sent == len(outcomes)
    assert found.doubled == doubled


def test_the_sla_holds_again_after_the_last_window_in_which_it_did_not():
    good = [answered(10 + 0.1 * n) for n in range(200)]
    assert recovered_s(good, 10, SLA_S, 99) == 0
    late = [answered(10 + 3 * WINDOW_S + 0.1, 0.6)]
    assert recovered_s([*good, *late], 10, SLA_S, 99) == 4 * WINDOW_S
    lost = [Request(10.0, 30.0, Outcome.LOST)]
    assert recovered_s([*good, *lost], 10, SLA_S, 99) == WINDOW_S
    # What was due before the fault says nothing about it.
    assert recovered_s([*good, answered(9.9, 0.6)], 10, SLA_S, 99) == 0


def test_a_percentile_forgives_the_others():
    requests = [answered(0.01 * n, 0.6 if n == 0 else 0.1) for n in range(100)]
    assert recovered_s(requests, 0, SLA_S, 99) == 0
    assert recovered_s(requests, 0, SLA_S, 99.5) == WINDOW_S
