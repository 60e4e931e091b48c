"""What is known of a batch once it has ended."""

from dataclasses import dataclass
from typing import Any

from policy.batcher.requests import StartReason


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A finished batch, for metrics and `GET /sojourn/policy`.

    Attributes
    ----------
    size : int
        Number of rows.
    reason : StartReason
        Why it was started.
    queue_length_left : int
        Rows left waiting when it started.
    oldest_wait_s : float
        How long its oldest request had waited when it started.
    duration_s : float
        Time on the device.
    energy_mj : float or None
        Energy of the batch; None unless the model reports it.
    failed : bool
        Whether the model failed on it.
    cpu_s : float
        CPU time of the thread that ran it.
    on_loop : bool
        Whether that was the event loop's own thread.
    """

    size: int
    reason: StartReason
    queue_length_left: int
    oldest_wait_s: float
    duration_s: float
    energy_mj: float | None
    failed: bool
    cpu_s: float = 0.0
    on_loop: bool = False

    def explain(self) -> dict[str, Any]:
        """Return the batch in `GET /sojourn/policy`."""
        return {
            "reason": self.reason.value,
            "size": self.size,
            "queue_length_left": self.queue_length_left,
            "oldest_wait_ms": 1e3 * self.oldest_wait_s,
            "duration_ms": 1e3 * self.duration_s,
            "on_event_loop": self.on_loop,
            "failed": self.failed,
        }
