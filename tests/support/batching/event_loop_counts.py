"""What an event loop did in a second."""

from collections.abc import Sequence
from typing import Any

from deployments.batcher.event_loop_meter import EventLoopCounts


def event_loop_counts(
    requests: int,
    batches: int,
    refused: int = 0,
    *,
    costs_s: Sequence[float] = (0.0, 0.0, 0.0),
    slowdown: float = 1.0,
    **others: Any,
) -> EventLoopCounts:
    """Return a second of an event loop that needs `slowdown` times its CPU time.

    `costs_s` are the CPU times of a request that is answered, of a batch, and of a refusal.
    """
    counts = (requests - refused, batches, refused)
    cpu_s = sum(count * cost_s for count, cost_s in zip(counts, costs_s, strict=True))
    given: dict[str, Any] = {
        "duration_s": 1.0,
        "busy_s": slowdown * cpu_s,
        "cpu_s": cpu_s,
        "work_cpu_s": cpu_s,
        "cpu_wait_s": (slowdown - 1) * cpu_s,
        "longest_lag_s": 0.002,
    }
    return EventLoopCounts(
        requests=requests, refused=refused, batches=batches, **{**given, **others}
    )
