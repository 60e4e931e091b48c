"""A simulation of one batching device, event by event: the reference for computed distributions."""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def simulate(
    actions: IntArray,
    max_wait_ms: float,
    batch_times_ms: FloatArray,
    arrival_rate: float,
    max_queue_rows: int,
    requests: int,
    seed: int,
    variation: float = 0.0,
) -> tuple[FloatArray, IntArray, int, float]:
    """Simulate one device under Poisson arrivals.

    Written in the part of Python that numba can compile.

    Parameters
    ----------
    actions : ndarray of int
        Batch size to start, by queue length; the last entry holds for all beyond.
    max_wait_ms : float
        Age of the oldest request at which a free device starts in any case; infinite: never.
    batch_times_ms : ndarray of float
        By batch size, from 1.
    arrival_rate : float
        Poisson arrivals per millisecond.
    max_queue_rows : int
        Requests that may wait; -1: any number.
    requests : int
        Requests to serve.
    seed : int
    variation : float
        Coefficient of variation of gamma-distributed batch times; 0: fixed ones.

    Returns
    -------
    response_times_ms : ndarray of float, shape (requests,)
    batches : ndarray of int
        Number of batches by size, from 0.
    refused : int
        Requests that found no room.
    duration_ms : float
    """
    np.random.seed(seed)
    last = actions.size - 1
    largest = actions.max()
    response_times = np.empty(requests)
    batches = np.zeros(largest + 1, np.int64)
    ring = 1 << 20
    arrivals = np.empty(ring)
    head = tail = served = refused = 0
    now = 0.0
    following = np.random.exponential(1 / arrival_rate)
    while served < requests:
        size = actions[min(tail - head, last)]
        while size == 0:
            due = np.inf
            if tail > head:
                due = arrivals[head % ring] + max_wait_ms
            if due <= max(now, following):
                now = max(now, due)
                size = min(tail - head, largest)
                break
            now = following
            following = now + np.random.exponential(1 / arrival_rate)
            size = actions[min(tail - head + 1, last)]
            if max_queue_rows >= 0 and tail - head >= max_queue_rows and size == 0:
                refused += 1
            else:
                arrivals[tail % ring] = now
                tail += 1
        end = now + batch_times_ms[size - 1]
        if variation > 0:
            shape = 1 / variation**2
            end = now + np.random.gamma(shape, batch_times_ms[size - 1] / shape)
        batches[size] += 1
        for _ in range(size):
            if served < requests:
                response_times[served] = end - arrivals[head % ring]
                served += 1
            head += 1
        while following <= end:
            if max_queue_rows >= 0 and tail - head >= max_queue_rows:
                refused += 1
            else:
                arrivals[tail % ring] = following
                tail += 1
            following += np.random.exponential(1 / arrival_rate)
        now = end
    return response_times, batches, refused, now
