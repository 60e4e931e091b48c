import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from policy.batcher.request_queue import RequestQueue
from policy.batcher.requests import Request

HEAD_START_S = 0.1
ANSWER_WITHIN_S = 5.0


def queue_of(*requests: Request):
    queue = RequestQueue()
    for request in requests:
        queue.append(request)
    return queue


def take(queue: RequestQueue, size, done_s=0.0, kind=None):
    """Return the slices taken, and the requests that missed their deadline."""
    missed: list[Request] = []

    def miss(request: Request):
        missed.append(request)
        request.cancelled = True
        queue.discard(request)

    slices = queue.take(size, done_s, done_s - ANSWER_WITHIN_S, HEAD_START_S, miss, kind)
    return [(request.content, start, stop) for request, start, stop in slices], missed


def test_a_request_that_has_begun_is_finished():
    queue = queue_of(Request(0.0, 4, "long"))
    assert take(queue, 3, done_s=4.0) == ([("long", 0, 3)], [])
    assert take(queue, 3, done_s=8.0) == ([("long", 3, 4)], [])


@given(
    st.lists(
        st.one_of(st.tuples(st.just("arrive"), st.integers(0, 1)), st.integers(0, 10**6)),
        max_size=300,
    )
)
@example([("arrive", 0)] * 60 + [5] * 50)
def test_cancelled_requests_are_never_taken_and_never_more_than_the_others(events):
    """An event is an arrival with its priority, or the cancellation of any waiting request."""
    queue = RequestQueue()
    waiting: list[Request] = []
    for event in events:
        if isinstance(event, tuple):
            waiting.append(Request(0.0, 1, len(waiting), priority=event[1]))
            queue.append(waiting[-1])
        elif waiting:
            left = waiting.pop(event % len(waiting))
            left.cancelled = True
            queue.discard(left)
        assert queue.rows == len(waiting)
        assert len(queue.requests()) <= 2 * len(waiting) + 17
    slices, _ = take(queue, len(events) + 1)
    assert len(slices) == len(waiting)
    assert {content for content, _, _ in slices} == {request.content for request in waiting}


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 3), st.integers(0, 30)),
        max_size=25,
    ),
    st.lists(st.integers(1, 6), max_size=40),
    st.sets(st.integers(0, 24)),
)
def test_the_queue_is_a_list_sorted_by_effective_arrival(arrivals, sizes, hurried):
    """Against a sorted list: priorities, kinds, cut requests, and deadlines missed on the way."""
    queue = RequestQueue()
    requests = []
    now_s = 0.0
    for number, (priority, kind, rows, pause) in enumerate(arrivals):
        now_s += 0.01 * pause
        deadline_s = -1.0 if number in hurried else math.inf
        requests.append(Request(now_s, rows, number, deadline_s, priority, kind))
        queue.append(requests[-1])

    def order(request: Request):
        return request.arrival_s - request.priority * HEAD_START_S, -request.priority

    expected = [(one, row) for one in sorted(requests, key=order) for row in range(one.rows)]
    for size in sizes:
        assert queue.rows == len(expected)
        if not expected:
            break
        first = queue.first_kind(HEAD_START_S)
        assert first == expected[0][0].kind
        slices, missed = take(queue, size, kind=first)
        got = [(number, row) for number, start, stop in slices for row in range(start, stop)]
        fitting = [pair for pair in expected if pair[0].kind == first]
        in_time = [pair for pair in fitting if pair[0].deadline_s == math.inf]
        assert got == [(one.content, row) for one, row in in_time[:size]]
        gone = {id(one) for one in missed}
        taken = {(number, row) for number, row in got}
        expected = [
            pair
            for pair in expected
            if id(pair[0]) not in gone and (pair[0].content, pair[1]) not in taken
        ]
    assert queue.rows == len(expected)
