"""When a batch must start for all that wait to be in time, and what is too late in any case.

Requests become too late when others of higher priority overtake them, or the batch on the device is
overdue.
"""

import math
from collections import Counter
from collections.abc import Hashable

from policy.batcher.admission import Admission
from policy.batcher.limits import Limits
from policy.batcher.request_queue import RequestQueue
from policy.batcher.requests import Request

#: A kind that no request has.
_NO_KIND = object()


def latest_start_s(
    queue: RequestQueue, limits: Limits, wait_ms: float, max_age_ms: float, largest: int
) -> float:
    """Return when a free device must start a batch at the latest.

    The batches of several kinds follow each other, so a kind's rows wait for the batches of those
    that go before it. The queue has fewer rows than `largest`, the size of the largest batch. A
    batch must start when the oldest request has the age `wait_ms`, or the oldest of a kind
    `max_age_ms`.
    """
    due_s = queue.oldest_arrival_s() + 1e-3 * wait_ms
    if not queue.has_several_kinds:
        deadline_s = queue.earliest_deadline_s()
        if deadline_s == math.inf:
            return due_s
        size = min(queue.rows, largest)
        return min(due_s, deadline_s - 1e-3 * limits.early_latency_ms(size))
    rows: Counter[Hashable] = Counter()
    oldest_s: dict[Hashable, float] = {}
    deadline_s_of: dict[Hashable, float] = {}
    for one in queue.in_order(1e-3 * limits.head_start_ms):
        kind = one.kind
        rows[kind] += one.rows - one.rows_started
        oldest_s[kind] = min(oldest_s.get(kind, math.inf), one.arrival_s)
        deadline_s_of[kind] = min(deadline_s_of.get(kind, math.inf), one.deadline_s)
    before_ms = 0.0
    for kind, waiting in rows.items():
        due_s = min(due_s, oldest_s[kind] + 1e-3 * (max_age_ms - before_ms))
        before_ms += limits.early_latency_ms(waiting)
        due_s = min(due_s, deadline_s_of[kind] - 1e-3 * before_ms)
    return due_s


def too_late(
    queue: RequestQueue,
    tested: int,
    admission: Admission,
    device_free_s: float | None,
    now_s: float,
    below: float = math.inf,
) -> list[Request]:
    """Return the waiting requests of priorities `below` that will be too late.

    Batches count as full, as later arrivals may fill them up; an idle device need not wait for
    them. Requests that have begun are finished, and so are those that are let in although they take
    too long. `tested` rows wait to be tested after a batch failed.
    """
    limits = admission.limits
    size = limits.max_batch_size
    within_s = 1e-3 * limits.answer_within_ms

    def done_s(batches: int) -> float:
        rows = size * batches
        if device_free_s is None:
            rows = min(rows, queue.rows + tested)
        return admission.completion_s(rows, now_s, device_free_s)

    tests, everything = -(-tested // size), -(-queue.rows_ahead(_NO_KIND, size) // size)
    first_due_s = min(queue.oldest_arrival_s() + within_s, queue.earliest_deadline_s())
    if done_s(tests + everything) <= first_due_s:
        return []  # as nearly always
    ahead: Counter[Hashable] = queue.returned_rows()
    batches = tests + sum(-(-rows // size) for rows in ahead.values())
    found = []
    for request in queue.in_order(1e-3 * limits.head_start_ms):
        rows = ahead[request.kind] + request.rows - request.rows_started
        more = -(-rows // size) - -(-ahead[request.kind] // size)
        fits_alone = (
            admission.processing_ms(-(-request.rows // size) * size) <= limits.admit_within_ms
        )
        if (
            fits_alone
            and request.priority < below
            and not request.rows_started
            and done_s(batches + more) > min(request.arrival_s + within_s, request.deadline_s)
        ):
            found.append(request)
        else:
            ahead[request.kind] = rows
            batches += more
    return found
