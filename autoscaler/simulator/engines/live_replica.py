"""The live engine's state of requests and replicas."""

import math
from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from autoscaler.simulator.engines.interface import ReplicaCounters
from policy.batcher.core import BatcherCore
from policy.batcher.requests import Batch


class EventKind(IntEnum):
    """The order of simultaneous events."""

    DEVICE = 0
    READ = 1
    RETRY = 2
    ARRIVAL = 3


@dataclass
class Message:
    """A client's request: in transit, held at the balancer, or in a replica."""

    sent_s: float
    attempts: int = 0
    #: Slot of the replica that refused it last.
    avoid: int | None = None
    #: Time of its arrival at its replica.
    reached_s: float = math.nan
    #: Time at which the event loop has read it.
    read_s: float = math.nan
    #: Size of its batch.
    batch_size: int = 0


@dataclass(eq=False)
class LiveReplica:
    """A replica of the live engine: its batcher core, its event loop and its counters."""

    slot: int
    core: BatcherCore
    counted_s: float
    #: Random numbers of its batch times.
    batch_random: NDArray[np.uint64]
    batch: Batch | None = None
    drained_at_s: float = math.inf
    draining: bool = False
    #: Counts its decisions. A device event scheduled by an earlier decision is stale.
    decision: int = 0
    #: Its requests, waiting and on the device, in order of arrival.
    messages: deque[Message] = field(default_factory=deque)
    #: Requests that its event loop has not read.
    unread: deque[Message] = field(default_factory=deque)
    #: When the event loop has finished its work.
    loop_free_s: float = -math.inf
    offered: int = 0
    refused: int = 0
    completed: int = 0
    late: int = 0
    expired: int = 0

    @property
    def load(self) -> int:
        """Number of requests in the replica."""
        return len(self.messages) + len(self.unread)

    def counters(self) -> ReplicaCounters:
        """Return its counters."""
        return ReplicaCounters(
            self.offered,
            self.refused,
            self.completed,
            self.late,
            self.expired,
            self.core.queue_length,
        )
