"""The requests and batches that the batcher core exchanges with its callers."""

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any, NamedTuple, Protocol

from policy.batching_policy import BatchingPolicy


class PolicySource(Protocol):
    """A batching policy for every arrival rate; `policy.tables.table.PolicyTable` is one."""

    def lookup(self, arrival_rate_per_s: float) -> BatchingPolicy:
        """Return the policy for an arrival rate without computing anything."""

    def cell_start_per_s(self, arrival_rate_per_s: float) -> float:
        """Return the rate below which another policy may hold; 0 if there is none."""


@dataclass(frozen=True)
class FixedPolicy:
    """The same policy for every arrival rate, which then need not be observed."""

    policy: BatchingPolicy

    def lookup(self, arrival_rate_per_s: float) -> BatchingPolicy:
        return self.policy

    def cell_start_per_s(self, arrival_rate_per_s: float) -> float:
        return 0.0


class StartReason(StrEnum):
    """Why a batch was started."""

    LIMIT = "limit"  # the queue reached the policy's control limit
    FULL = "full"  # the queue filled a batch of the maximum size
    MAX_WAIT = "max_wait"  # the oldest request had waited long enough
    DRAIN = "drain"  # the replica is shutting down
    SEARCH = "search"  # it tests requests of a failed batch
    AGAIN = "again"  # it reruns requests of a failed batch that were cleared


class Refusal(Enum):
    """Why a request was not queued."""

    FULL = "full"  # no room
    DEADLINE = "deadline"  # its deadline cannot be met here
    HOPELESS = "hopeless"  # its deadline could not be met by a free device either
    EXPIRED = "expired"  # it was read too late to be answered within the SLA, even here and at once


@dataclass(eq=False, slots=True)
class Request:
    """A request in the batcher.

    Attributes
    ----------
    arrival_s : float
        When it reached the replica, on the caller's clock. Its wait counts from here.
    content : Any
        The caller's own data, handed back with each slice; the core never reads it.
    deadline_s : float
        When its answer becomes useless, on the caller's clock.
    kind : hashable
        A batch has requests of one kind only; see `deployments.batcher.shapes`.
    rows_started : int
        Rows that have left the queue for a batch at least once.
    begun_s : float
        When the newest request had arrived as its first rows left the queue; infinity if they have
        not, or if it takes too long to be answered in time.
    rows_suspected : int
        Rows that wait to be tested after a batch failed.
    failed_batches : int
        Failed batches that contained one of its slices.
    cancelled : bool
        Whether the rows that are not on the device were given up.
    request_id : bytes
        By which its sender knows it; empty if it has none.
    """

    arrival_s: float
    rows: int
    content: Any = None
    deadline_s: float = math.inf
    priority: int = 0
    kind: Hashable = None
    rows_started: int = field(default=0, init=False)
    begun_s: float = field(default=math.inf, init=False)
    rows_queued: int = field(default=0, init=False)
    rows_suspected: int = field(default=0, init=False)
    failed_batches: int = field(default=0, init=False)
    cancelled: bool = field(default=False, init=False)
    request_id: bytes = field(default=b"", init=False)


class Slice(NamedTuple):
    """Rows ``start`` to ``stop - 1`` of a request, in one batch."""

    request: Request
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch for the device.

    Of its slices, it tests the first `slices_under_test`; none of an ordinary batch.
    """

    slices: tuple[Slice, ...]
    size: int
    reason: StartReason
    slices_under_test: int = 0
