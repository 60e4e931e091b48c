"""The compiled loop that follows requests through front and device, for `tandem`.

Event by event: arrivals, the front's work in the order in which it comes, batches by the policy.
Arrays in, arrays out; nothing is drawn here.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_F = TypeVar("_F", bound=Callable[..., Any])
_njit: Any = numba.njit


def _compiled(function: _F) -> _F:
    return cast(_F, _njit(cache=True, nogil=True)(function))


@_compiled
def follow_requests(
    arrivals_ms: FloatArray,
    request_ms: float,
    batch_ms: float,
    actions: IntArray,
    largest: int,
    max_wait_ms: float,
    waiting_room: int,
    batch_times_ms: FloatArray,
    ratios: FloatArray,
    ranks: FloatArray,
    max_backlog: int,
    responses_ms: FloatArray,
    batch_sizes: IntArray,
    first_requests: IntArray,
    served: IntArray,
) -> tuple[int, int, int, float]:
    """Follow requests until the last has arrived.

    Parameters
    ----------
    arrivals_ms : ndarray of float, shape (n,)
    request_ms, batch_ms : float
        The front's time per request, and per batch when it has ended.
    actions : ndarray of int
        As `BatchingPolicy.actions`.
    largest : int
        Largest batch, which a timer starts.
    max_wait_ms : float
        Since the request arrived at the front; infinite without a timer.
    waiting_room : int
        Requests that may wait for the device; negative: any number.
    batch_times_ms : ndarray of float, shape (max_batch_size,)
    ratios : ndarray of float, shape (max_batch_size, points)
        Of the time of a batch to `batch_times_ms`, by rank; one point for constant times.
    ranks : ndarray of float, shape (n,)
        The rank of each batch among the points, 0 to points - 1.
    max_backlog : int
        Stop when so many requests are not answered.
    responses_ms : ndarray of float, shape (n,), output
        Negative: refused. Those not answered yet are left as they are.
    batch_sizes, first_requests, served : ndarray of int, shape (n,), output
        Each batch's size and its place in `served`, which lists requests as they are served.

    Returns
    -------
    answered : int
        Requests answered or refused.
    batches : int
        Batches started.
    arrived : int
        Requests that arrived: n, or fewer if the backlog stopped it.
    end_ms : float
        When it stopped.
    """
    requests = arrivals_ms.size
    infinite = np.inf
    # The front's work: a request's number, or -1 - a batch's. Fewer than `capacity` jobs wait.
    capacity = 2 * max_backlog + 4
    jobs = np.empty(capacity, np.int64)
    first_job, jobs_waiting = 0, 0
    queued, taken = 0, 0  # in `served`: entries of all that the front handed on, and of batches
    answered, batches, arrived = 0, 0, 0
    front_done_ms, device_done_ms = infinite, infinite
    now_ms = 0.0
    last = actions.size - 1
    while arrived < requests and arrived - answered < max_backlog:
        timer_ms = infinite
        if queued > taken and device_done_ms == infinite:
            timer_ms = max(arrivals_ms[served[taken]] + max_wait_ms, now_ms)
        arrival_ms = arrivals_ms[arrived]
        now_ms = min(min(arrival_ms, front_done_ms), min(device_done_ms, timer_ms))
        if now_ms == front_done_ms:
            job = jobs[first_job]
            first_job = (first_job + 1) % capacity
            jobs_waiting -= 1
            if job >= 0:
                waiting = queued - taken
                room = waiting_room < 0 or waiting < waiting_room
                at_once = device_done_ms == infinite and actions[min(waiting + 1, last)] > 0
                if room or at_once:
                    served[queued] = job
                    queued += 1
                else:
                    responses_ms[job] = -1.0
                    answered += 1
            else:
                batch = -1 - job
                start = first_requests[batch]
                for place in range(start, start + batch_sizes[batch]):
                    responses_ms[served[place]] = now_ms - arrivals_ms[served[place]]
                answered += batch_sizes[batch]
            front_done_ms = infinite
        elif now_ms == device_done_ms:
            device_done_ms = infinite
            jobs[(first_job + jobs_waiting) % capacity] = -batches
            jobs_waiting += 1
        elif now_ms == arrival_ms:
            jobs[(first_job + jobs_waiting) % capacity] = arrived
            jobs_waiting += 1
            arrived += 1
        if front_done_ms == infinite and jobs_waiting:
            front_done_ms = now_ms + (request_ms if jobs[first_job] >= 0 else batch_ms)
        if device_done_ms == infinite and queued > taken:
            waiting = queued - taken
            size = actions[min(waiting, last)]
            if size == 0 and now_ms >= arrivals_ms[served[taken]] + max_wait_ms:
                size = min(waiting, largest)
            if size > 0:
                first_requests[batches] = taken
                batch_sizes[batches] = size
                rank = ranks[batches] if ratios.shape[1] > 1 else 0.0
                below = int(rank)
                above = min(below + 1, ratios.shape[1] - 1)
                ratio = ratios[size - 1, below]
                ratio += (rank - below) * (ratios[size - 1, above] - ratio)
                batches += 1
                taken += size
                device_done_ms = now_ms + batch_times_ms[size - 1] * ratio
    return answered, batches, arrived, now_ms
