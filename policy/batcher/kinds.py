"""When a batch must start if rows of several kinds wait, which share none."""

import math
from collections.abc import Hashable

from policy.batcher.limits import Limits
from policy.batcher.request_queue import RequestQueue


def latest_start_s(queue: RequestQueue, limits: Limits, max_age_ms: float) -> float:
    """Return when the first of the kinds' batches must start, for each to start in time.

    They follow each other, so a kind's rows wait for the batches of those that go before it.

    Parameters
    ----------
    queue : RequestQueue
        With fewer rows of each kind than the largest batch has.
    max_age_ms : float
        The age of its oldest request at which a kind's batch must start.
    """
    rows: dict[Hashable, int] = {}
    oldest_s: dict[Hashable, float] = {}
    deadline_s: dict[Hashable, float] = {}
    for one in queue.in_order(1e-3 * limits.head_start_ms):
        kind = one.kind
        rows[kind] = rows.get(kind, 0) + one.rows - one.rows_started
        oldest_s[kind] = min(oldest_s.get(kind, math.inf), one.arrival_s)
        deadline_s[kind] = min(deadline_s.get(kind, math.inf), one.deadline_s)
    start_s, before_ms = math.inf, 0.0
    for kind, waiting in rows.items():
        start_s = min(start_s, oldest_s[kind] + 1e-3 * (max_age_ms - before_ms))
        before_ms += limits.early_latency_ms(waiting)
        start_s = min(start_s, deadline_s[kind] - 1e-3 * before_ms)
    return start_s
