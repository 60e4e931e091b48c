"""A batching policy: when a free device starts a batch, and of what size."""

from collections.abc import Sequence
from dataclasses import dataclass

from policy.errors import InvalidInputError


@dataclass(frozen=True)
class BatchingPolicy:
    """What a free device does, by queue length and by the age of the oldest request.

    Attributes
    ----------
    actions : tuple of int
        ``actions[q]`` is the batch size to start at queue length ``q``; 0 is to wait. Beyond the
        end the last entry holds, so it must start a batch: one of the highest throughput, if the
        replica is to keep up. ``actions[q] <= q``.
    max_wait_ms : float or None
        A free device also starts, with all that waits up to the maximum batch size, when the
        oldest request has waited this long. None: never.
    """

    actions: tuple[int, ...]
    max_wait_ms: float | None = None

    def __post_init__(self) -> None:
        if not self.actions or self.actions[0] != 0 or self.actions[-1] < 1:
            raise InvalidInputError(
                "actions: the first must be 0 (nothing waits), the last at least 1"
            )
        if any(size < 0 or size > length for length, size in enumerate(self.actions)):
            raise InvalidInputError("actions: a batch cannot be larger than the queue it is from")
        if self.max_wait_ms is not None and not self.max_wait_ms >= 0:
            raise InvalidInputError(f"max_wait_ms: must be at least 0, not {self.max_wait_ms}")

    @property
    def max_batch_size(self) -> int:
        """Largest batch size that is ever started."""
        return max(self.actions)

    @property
    def control_limit(self) -> int:
        """Shortest queue at which a free device starts a batch of its own accord."""
        return next(length for length, size in enumerate(self.actions) if size)

    def batch_size(self, queue_length: int) -> int:
        """Batch size to start at `queue_length`; 0 is to wait."""
        last = len(self.actions) - 1
        return self.actions[queue_length if queue_length < last else last]

    @classmethod
    def from_control_limit(
        cls, control_limit: int, max_batch_size: int, max_wait_ms: float | None = None
    ) -> "BatchingPolicy":
        """Start all that waits, up to `max_batch_size`, as soon as `control_limit` wait."""
        if not 1 <= control_limit <= max_batch_size:
            raise InvalidInputError(
                f"control_limit: must be 1 to {max_batch_size}, not {control_limit}"
            )
        lengths = range(max_batch_size + 1)
        return cls(tuple(q if q >= control_limit else 0 for q in lengths), max_wait_ms)

    @classmethod
    def from_actions(
        cls, actions: Sequence[int], max_wait_ms: float | None = None
    ) -> "BatchingPolicy":
        """Make a policy of `actions`, without the repeated entries at its end."""
        end = len(actions)
        while end > 1 and actions[end - 1] == actions[end - 2]:
            end -= 1
        return cls(tuple(int(size) for size in actions[:end]), max_wait_ms)
