"""A batching policy: when a free device starts a batch, and how large."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from policy.errors import InvalidInputError


@dataclass(frozen=True)
class BatchingPolicy:
    """The actions of a free device, by the queue length and the age of the oldest request.

    Attributes
    ----------
    actions : tuple of int
        ``actions[q] <= q`` is the batch size to start at queue length ``q``; 0 is to wait. The last
        entry also holds for all longer queues, so it must start a batch, and its throughput is the
        policy's capacity. It may be smaller than the largest action.
    max_wait_ms : float or None
        A free device also starts when the oldest request has waited this long: all that wait, up to
        the maximum batch size. None: never.
    """

    actions: tuple[int, ...]
    max_wait_ms: float | None = None

    def __post_init__(self) -> None:
        if not self.actions or self.actions[0] != 0 or self.actions[-1] < 1:
            raise InvalidInputError(
                "actions: the first must be 0 (an empty queue), the last at least 1"
            )
        if any(size < 0 or size > length for length, size in enumerate(self.actions)):
            raise InvalidInputError("actions: a batch cannot be larger than the queue")
        if self.max_wait_ms is not None and not self.max_wait_ms >= 0:
            raise InvalidInputError(f"max_wait_ms: must be at least 0, not {self.max_wait_ms}")

    @cached_property
    def max_batch_size(self) -> int:
        """Largest batch size that the policy starts."""
        return max(self.actions)

    @property
    def control_limit(self) -> int:
        """Shortest queue at which a free device starts a batch before the max wait."""
        return next(length for length, size in enumerate(self.actions) if size)

    @cached_property
    def start_length(self) -> dict[int, int]:
        """Queue length at which a wait ends, by each length at which a free device waits."""
        starts, start = {}, len(self.actions) - 1
        for length in range(len(self.actions) - 1, -1, -1):
            if self.actions[length]:
                start = length
            else:
                starts[length] = start
        return starts

    def up_to(self, batch_size: int) -> "BatchingPolicy":
        """Return the policy that starts a batch of `batch_size` as soon as so many wait."""
        if batch_size >= self.max_batch_size:
            return self
        shorter = (self.batch_size(length) for length in range(batch_size))
        return BatchingPolicy((*shorter, batch_size), self.max_wait_ms)

    def batch_size(self, queue_length: int) -> int:
        """Return the batch size to start at `queue_length`; 0 is to wait."""
        last = len(self.actions) - 1
        return self.actions[queue_length if queue_length < last else last]

    @classmethod
    def from_control_limit(
        cls, control_limit: int, max_batch_size: int, max_wait_ms: float | None = None
    ) -> "BatchingPolicy":
        """Make the policy that starts all that wait as soon as `control_limit` wait."""
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
        """Make a policy from `actions`, without the repeated entries at their end."""
        end = len(actions)
        while end > 1 and actions[end - 1] == actions[end - 2]:
            end -= 1
        return cls(tuple(int(size) for size in actions[:end]), max_wait_ms)

    def to_dict(self) -> dict[str, Any]:
        """Return the policy in JSON's types."""
        return {"actions": list(self.actions), "max_wait_ms": self.max_wait_ms}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "BatchingPolicy":
        """Make the policy that `to_dict` wrote."""
        return cls(tuple(map(int, content["actions"])), content["max_wait_ms"])
