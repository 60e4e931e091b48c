"""What goes into the batcher's core, and what comes out of it."""

import math
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any, NamedTuple, Protocol

from policy.batching_policy import BatchingPolicy


class PolicySource(Protocol):
    """Where the core finds its policy; `policy.table.PolicyTable` is one."""

    def lookup(self, arrival_rate_per_s: float) -> BatchingPolicy:
        """Give the policy for an arrival rate, at once."""


class StartReason(StrEnum):
    """Why a batch was started."""

    LIMIT = "limit"  # the queue reached what the policy waits for
    FULL = "full"  # the queue filled a batch of the maximum size
    MAX_WAIT = "max_wait"  # the oldest request had waited long enough
    DRAIN = "drain"  # the replica is shutting down
    SEARCH = "search"  # a batch failed, and one of its requests is to blame
    AGAIN = "again"  # it holds requests of a failed batch that are not suspected


class Refusal(Enum):
    """Why a request was not queued."""

    FULL = "full"  # no room
    TOO_LATE = "too_late"  # its deadline cannot be met here


@dataclass(eq=False, slots=True)
class Request:
    """A request in the batcher.

    Attributes
    ----------
    arrival_s : float
        When it reached the replica, on the caller's clock. Waits count from here.
    rows : int
        How many rows it carries.
    content : Any
        What the caller wants back with each slice; the core never looks at it.
    deadline_s : float
        When its answer is of no use any more, on the caller's clock.
    priority : int
        0 is normal, 1 is high.
    """

    arrival_s: float
    rows: int
    content: Any = None
    deadline_s: float = math.inf
    priority: int = 0
    rows_started: int = field(default=0, init=False)
    rows_in_line: int = field(default=0, init=False)
    rows_suspected: int = field(default=0, init=False)
    failed_batches: int = field(default=0, init=False)
    cancelled: bool = field(default=False, init=False)


class Slice(NamedTuple):
    """Rows ``start`` to ``stop - 1`` of a request, in one batch."""

    request: Request
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Batch:
    """What the device takes next: slices in order of their turn.

    Attributes
    ----------
    slices : tuple of Slice
        Who is in it.
    size : int
        Rows.
    reason : StartReason
        Why it was started.
    suspects : int
        How many of the slices, from the first, are tested by it; 0 for an ordinary batch.
    """

    slices: tuple[Slice, ...]
    size: int
    reason: StartReason
    suspects: int = 0
