"""An event simulation of event loop and device in tandem, as plain as it can be: an oracle."""

import heapq
from collections import deque
from itertools import count

import numpy as np

from policy.batching_policy import BatchingPolicy
from policy.event_loop import EventLoopCosts


def simulate_tandem(
    latency_ms: np.ndarray,
    event_loop: EventLoopCosts,
    policy: BatchingPolicy,
    arrival_rate_per_s: float,
    requests: int,
    seed: int,
    *,
    variation: float = 0.0,
    max_queue_rows: float = np.inf,
) -> tuple[np.ndarray, float, float]:
    """Simulate Poisson arrivals through the event loop, the device, and the event loop again.

    Parameters
    ----------
    variation : float
        Coefficient of variation of gamma-distributed batch times; 0: constant.

    Returns
    -------
    responses_ms : ndarray
        Of the accepted requests after a tenth of all, in the order of their answers.
    refused_share : float
    mean_batch_size : float
    """
    rng = np.random.default_rng(seed)
    order = count()
    arrivals_ms = np.cumsum(rng.exponential(1e3 / arrival_rate_per_s, requests)).tolist()
    events = [(arrivals_ms[0], next(order), "arrival", 0)]
    work: deque = deque()  # the event loop's: (duration, request or batch)
    queue: deque = deque()
    device_free, event_loop_free, now = True, True, 0.0
    responses_ms: list[tuple[int, float]] = []
    sizes: list[int] = []
    refused = 0

    def push(at_ms, what, payload=None):
        heapq.heappush(events, (at_ms, next(order), what, payload))

    while events:
        now, _, what, payload = heapq.heappop(events)
        if what == "arrival":
            work.append((event_loop.request_ms, payload))
            if payload + 1 < requests:
                push(arrivals_ms[payload + 1], "arrival", payload + 1)
        elif what == "batch ended":
            device_free = True
            work.append((event_loop.batch_ms, payload))
        elif what == "event loop done":
            event_loop_free = True
            if isinstance(payload, list):
                responses_ms += [(r, now - arrivals_ms[r]) for r in payload]
            elif len(queue) < max_queue_rows or (
                device_free and policy.batch_size(len(queue) + 1) > 0
            ):
                queue.append(payload)
                if policy.max_wait_ms is not None:
                    push(max(now, arrivals_ms[payload] + policy.max_wait_ms), "timer", payload)
            else:
                refused += 1
        if event_loop_free and work:
            duration_ms, job = work.popleft()
            event_loop_free = False
            push(now + duration_ms, "event loop done", job)
        if device_free and queue:
            size = policy.batch_size(len(queue))
            if size == 0 and policy.max_wait_ms is not None:
                expired = now >= arrivals_ms[queue[0]] + policy.max_wait_ms
                size = min(len(queue), policy.max_batch_size) if expired else 0
            if size:
                device_free = False
                batch = [queue.popleft() for _ in range(size)]
                sizes.append(size)
                took_ms = latency_ms[size - 1]
                if variation:
                    took_ms *= rng.gamma(variation**-2, variation**2)
                push(now + took_ms, "batch ended", batch)
    settled = np.array([ms for request, ms in responses_ms if request >= requests // 10])
    return settled, refused / requests, float(np.mean(sizes))
