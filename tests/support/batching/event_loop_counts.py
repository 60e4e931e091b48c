"""What an event loop did in a second, made of equal iterations."""

from collections.abc import Sequence
from typing import Any

from deployments.batcher.event_loop_meter import EventLoopCounts, IterationSums


def event_loop_counts(
    requests: int,
    batches: int,
    refused: int = 0,
    *,
    costs_s: Sequence[float] = (0.0, 0.0, 0.0),
    slowdown: float = 1.0,
    **others: Any,
) -> EventLoopCounts:
    """Return a second with an iteration for each batch, over which the requests are spread.

    Parameters
    ----------
    requests, batches, refused : int
        Of the second.
    costs_s : sequence of float
        CPU time of a request that is answered, of a batch, and of a refusal.
    slowdown : float
        Wall time of the iterations over their CPU time: the loop waits for a CPU.
    **others
        Further attributes of `EventLoopCounts`.
    """
    answered = requests - refused
    parts = max(batches, 1)
    iterations, cpu_s = IterationSums(), 0.0
    for number in range(parts):
        of_each = (
            *(answered * (number + 1) // parts - answered * number // parts, int(batches > 0)),
            refused * (number + 1) // parts - refused * number // parts,
        )
        if any(of_each):
            work_s = sum(n * cost_s for n, cost_s in zip(of_each, costs_s, strict=True))
            iterations.add(*of_each, work_s)
            cpu_s += work_s
    given: dict[str, Any] = {
        "duration_s": 1.0,
        "busy_s": slowdown * cpu_s,
        "cpu_s": cpu_s,
        "cpu_wait_s": (slowdown - 1) * cpu_s,
        "longest_lag_s": 0.002,
        "iterations": iterations,
    }
    return EventLoopCounts(
        requests=requests, refused=refused, batches=batches, **{**given, **others}
    )
