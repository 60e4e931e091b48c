import math

from hypothesis import given
from hypothesis import strategies as st

from policy.batcher.admission import Admission
from policy.batcher.limits import Limits

LATENCY_MS = st.lists(st.floats(0.1, 50.0), min_size=1, max_size=8).map(sorted)
WITHIN_MS = st.floats(1.0, 300.0)


def admits(admission: Admission, rows, ahead, *, free_s=None, arrival_s=5.0):
    """Return whether rows may wait behind others, at 5 s."""
    return admission.admits(
        rows, queued=ahead, ahead=ahead, device_free_s=free_s, now_s=5.0, arrival_s=arrival_s
    )


def limits(latency_ms, within_ms, room=1000):
    return Limits(10.0, room, latency_ms, admit_within_ms=within_ms, answer_within_ms=within_ms)


@given(
    latency_ms=LATENCY_MS,
    within_ms=WITHIN_MS,
    ahead=st.integers(1, 100),
    rows=st.integers(1, 20),
    waited_s=st.floats(0.0, 0.3),
    busy_s=st.none() | st.floats(0.0, 0.2),
)
def test_what_is_admitted_behind_others_is_done_in_time(
    latency_ms, within_ms, ahead, rows, waited_s, busy_s
):
    admission = Admission(limits(latency_ms, within_ms))
    free_s = None if busy_s is None else 5.0 + busy_s
    admitted = admits(admission, rows, ahead, free_s=free_s, arrival_s=5.0 - waited_s)
    # An independent account: batches of the largest size, one after the other, and what is left.
    sizes = [len(latency_ms)] * ((ahead + rows) // len(latency_ms))
    if left := (ahead + rows) % len(latency_ms):
        sizes.append(left if busy_s is None else len(latency_ms))  # filled up by later arrivals
    done_s = (busy_s or 0.0) + 1e-3 * math.fsum(latency_ms[size - 1] for size in sizes)
    slack_s = 1e-3 * within_ms - waited_s - done_s
    if abs(slack_s) > 1e-9:
        assert admitted == (slack_s > 0)


@given(latency_ms=LATENCY_MS, refused=st.integers(0, 200))
def test_the_more_a_replica_refuses_the_less_it_admits(latency_ms, refused):
    bounds = Limits(
        10.0, 1000, latency_ms, admit_within_ms=300.0, answer_within_ms=300.0, try_ms=5.0, retries=5
    )

    def most(admission: Admission):
        return sum(admits(admission, 1, ahead, free_s=5.0) for ahead in range(200))

    fresh, refusing = Admission(bounds), Admission(bounds)
    for _ in range(refused):
        refusing.count_refused(1, 100.0)
    assert most(refusing) <= most(fresh)
    for _ in range(3000):
        refusing.count_admitted(1, 100.0)
    assert most(refusing) == most(fresh)


def test_the_waiting_room_is_a_limit_of_its_own():
    admission = Admission(limits([1.0], math.inf, room=3))
    taken = [admits(admission, 1, queued) for queued in range(5)]
    assert taken == [True, True, True, False, False]
