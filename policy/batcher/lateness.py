"""Waiting requests that cannot be answered in time any more.

Others of higher priority have overtaken them, or the batch on the device is overdue.
"""

from collections import Counter
from collections.abc import Hashable

from policy.batcher.admission import Admission
from policy.batcher.request_queue import RequestQueue
from policy.batcher.requests import Request

#: A kind that no request has.
_NO_KIND = object()


def too_late(
    queue: RequestQueue,
    tested: int,
    admission: Admission,
    device_free_s: float | None,
    now_s: float,
) -> list[Request]:
    """Return the waiting requests that will be too late.

    Batches count as full, as later arrivals may fill them up; an idle device need not wait for
    them. Requests that have begun are finished, and so are those that are let in although they take
    too long.

    Parameters
    ----------
    tested : int
        Rows that wait to be tested after a batch failed.
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
            and not request.rows_started
            and done_s(batches + more) > min(request.arrival_s + within_s, request.deadline_s)
        ):
            found.append(request)
        else:
            ahead[request.kind] = rows
            batches += more
    return found
