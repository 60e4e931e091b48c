r"""The share of requests refused by a replica that admits only what it can answer in time.

While a batch runs, a request is admitted if the rest of that batch, and those ahead of it in full
batches, and its own full batch end within a limit :math:`a`. So in the time :math:`r` before the
batch's end there is room for :math:`B \lfloor (a - r) / \tau_B \rfloor` requests: ever more, in
steps of full batches. The queue at the starts of batches is a Markov chain, as without such a rule
(docs/response_times.md); in each step's time it grows by a Poisson number, up to that step's room.

The device starts whenever it is free. As batches are counted as full, whoever is admitted is
answered in time if batches take what the profile says: the refused are all that are not in time.
Where batch times vary, their means are used, and what the variation makes late is left out.
"""

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from policy.batch_sizes import BatchSizing
from policy.markov import stationary_with_tail
from policy.probability import poisson_table
from policy.profile import Profile

FloatArray = NDArray[np.float64]

_ROUNDING = 1e-9


class _Step(NamedTuple):
    """The requests that may wait from `begin_ms` until `end_ms` before the end of a batch."""

    begin_ms: float
    end_ms: float
    room: int


def timely_refused_share(
    profile: Profile,
    sizing: BatchSizing,
    arrival_rate_per_s: float,
    *,
    waiting_room: int,
    admit_within_ms: float,
    response_time_ms: float,
) -> float:
    """Return the fraction of Poisson arrivals that is refused.

    Parameters
    ----------
    profile : Profile
        Batch times, up to the largest batch: the one that admission counts with. Front and way are
        left out.
    sizing : BatchSizing
        The batches that the device starts, as soon as it is free.
    arrival_rate_per_s : float
        Requests per second, those refused included.
    waiting_room : int
        Requests that may wait in any case besides those in service.
    admit_within_ms : float
        A request is admitted if it will be done within this time.
    response_time_ms : float
        A request that its batch would answer later is dropped: where batches are smaller than those
        that admission counts with.
    """
    believed_ms = profile.latency_ms
    times_ms = believed_ms
    if profile.latency_quantiles is not None:
        times_ms = profile.latency_quantiles.means_ms(believed_ms)
    largest = sizing.max_batch_size
    rules = [(admit_within_ms, believed_ms.size, float(believed_ms[-1]))]
    if largest < believed_ms.size:
        rules.append((response_time_ms, largest, float(believed_ms[largest - 1])))
    steps = _steps(rules, float(times_ms[:largest].max()), waiting_room)
    most = steps[-1].room
    queue = np.arange(1, max(most, 1) + 1)
    sizes = np.array(sizing.sizes)[np.minimum(queue, largest)]
    left_over, batch_ms = queue - sizes, times_ms[sizes - 1]
    arrivals_per_ms = 1e-3 * arrival_rate_per_s
    at_end = _queue_at_end(steps, left_over, batch_ms, arrivals_per_ms, most)
    transitions = np.zeros((queue.size, queue.size))
    transitions[:, : at_end.shape[1] - 1] = at_end[:, 1:]
    # A request that finds the device free starts at once.
    transitions[:, 0] += at_end[:, 0]
    probabilities = stationary_with_tail(transitions)
    admitted = at_end @ np.arange(at_end.shape[1]) - left_over
    refused = float(probabilities @ (arrivals_per_ms * batch_ms - admitted))
    served = float(probabilities @ sizes)
    return max(refused, 0.0) / (max(refused, 0.0) + served)


def _steps(
    rules: list[tuple[float, int, float]], longest_ms: float, waiting_room: int
) -> list[_Step]:
    """Return the rooms in the course of a batch, from its begin to its end."""

    def room(before_end_ms: float) -> int:
        rooms = [waiting_room]
        for within_ms, size, full_ms in rules:
            batches = math.floor((within_ms - before_end_ms) / full_ms + _ROUNDING)
            # One that takes too long on an idle device may wait if nothing else does.
            rooms.append(max(0, size * batches) if full_ms <= within_ms else 1)
        return min(rooms)

    times_ms = {0.0, longest_ms}
    for within_ms, _, full_ms in rules:
        least = max(math.ceil((within_ms - longest_ms) / full_ms), 0)
        for batches in range(least, math.floor(within_ms / full_ms) + 1):
            times_ms.add(min(max(within_ms - batches * full_ms, 0.0), longest_ms))
    ends_ms = sorted(times_ms, reverse=True)
    steps: list[_Step] = []
    for begin_ms, end_ms in pairwise(ends_ms):
        more = room((begin_ms + end_ms) / 2)
        if steps and steps[-1].room == more:
            begin_ms = steps.pop().begin_ms
        steps.append(_Step(begin_ms, end_ms, more))
    return steps


def _queue_at_end(
    steps: list[_Step],
    left_over: NDArray[np.intp],
    batch_ms: FloatArray,
    arrivals_per_ms: float,
    most: int,
) -> FloatArray:
    """Return the probabilities of 0 to `most` waiting at a batch's end, by the queue at its start.

    Shape (starts, most + 1); row ``m - 1`` is for a start at which ``m`` wait.
    """
    at_end = np.zeros((left_over.size, most + 1))
    begun = np.zeros(left_over.size, dtype=bool)
    for begin_ms, end_ms, room in steps:
        if begun.any():
            added = poisson_table(room + 1, arrivals_per_ms * (begin_ms - end_ms))
            at_end[begun] = at_end[begun] @ _growth(added, np.arange(most + 1), room, most)
        begins = (batch_ms > end_ms) & (batch_ms <= begin_ms)
        added = poisson_table(room + 1, arrivals_per_ms * (batch_ms[begins] - end_ms))
        at_end[begins] = _growth(added, left_over[begins], room, most)
        begun |= begins
    return at_end


def _growth(added: FloatArray, queues: NDArray[np.intp], room: int, most: int) -> FloatArray:
    """Return the probabilities of the queue after Poisson arrivals, each from one of `queues`.

    Parameters
    ----------
    added : ndarray of float, shape (room + 1,) or (n, room + 1)
        Probabilities of the number of arrivals.
    queues : ndarray of int, shape (n,)
    room : int
        A queue of so many, or more, does not grow.
    most : int

    Returns
    -------
    ndarray of float, shape (n, most + 1)
    """
    after = np.zeros((queues.size, most + 1))
    added = np.broadcast_to(added, (queues.size, room + 1))
    for row, before in enumerate(queues):
        if before >= room:
            after[row, before] = 1.0
            continue
        after[row, before:room] = added[row, : room - before]
        after[row, room] = max(0.0, 1.0 - after[row, before:room].sum())
    return after
