"""What moves the requests of a simulated fleet: the interface of the two engines.

`simulator.engines.live` drives the batcher core of the live service, event by event;
`simulator.engines.compiled` makes the same decisions in compiled code. Tests hold one to the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from autoscaler.sizing.try_delays import TryDelays
from deployments.batcher.limits import Limits
from policy.objective import ServiceLevelObjective
from policy.table import PolicyTable

FloatArray = NDArray[np.float64]


class Routing(StrEnum):
    """How the load balancer picks a replica; after a refusal, never the one that refused last."""

    RANDOM = "random"  # RAND, HAProxy's random(1)
    POWER_OF_TWO = "power_of_two"  # HAProxy's random(2): the less loaded of two random ones
    LEAST_CONNECTIONS = "least_connections"  # HAProxy's leastconn; at random where several have it


@dataclass(frozen=True, eq=False)
class ReplicaModel:
    """What every replica of the fleet is.

    Attributes
    ----------
    table : PolicyTable
    limits : Limits
        Waiting room, longest wait, and the times of batches.
    energy_mj : FloatArray or None, shape (max_batch_size,)
        Energies of batches.
    objective : ServiceLevelObjective
        The client's SLA.
    delays : TryDelays
        Between balancer and replica; `retries` must be a number.
    routing : Routing
    """

    table: PolicyTable
    limits: Limits
    energy_mj: FloatArray | None
    objective: ServiceLevelObjective
    delays: TryDelays
    routing: Routing

    @property
    def objective_at_replica(self) -> ServiceLevelObjective:
        """What the way to a replica and back leaves of the SLA: what a replica calls late."""
        return self.objective.after(self.delays.way_ms)

    @property
    def retries(self) -> int:
        """Retries after which the balancer gives up."""
        assert self.delays.retries is not None
        return self.delays.retries


class ReplicaCounters(NamedTuple):
    """What a replica has counted since it was added; `waiting` is of now.

    `late` is by the replica's own clock: from when a request reached it to the end of its batch.
    """

    offered: int
    refused: int
    completed: int
    late: int
    waiting: int


class Answered(NamedTuple):
    """One answered request, as an engine that keeps a log tells of it."""

    sent_s: float
    response_ms: float
    batch_size: int
    tries: int


class Engine(Protocol):
    """Moves requests between clients, balancer and replicas; times never go back.

    A replica has the number of a place; whoever calls gives the numbers, small ones first.
    """

    def add(self, place: int, now_s: float) -> None:
        """Put a new, empty replica in a place."""

    def route_to(self, places: Sequence[int], now_s: float) -> None:
        """Say which replicas take requests from now on; while none does, requests wait."""

    def offer(self, sent_s: FloatArray) -> None:
        """Give the times at which clients send their next requests, rising."""

    def advance(self, until_s: float) -> None:
        """Simulate all tries before `until_s`, and what devices have done by then."""

    def drain(self, place: int, now_s: float) -> None:
        """Have a replica start what waits without waiting for others; see `gone_s`."""

    def gone_s(self, place: int) -> float:
        """When a draining replica had finished what it had; infinite while it has not."""

    def kill(self, place: int, now_s: float) -> None:
        """End a replica at once: the balancer sends what it had to others."""

    def finish(self, now_s: float) -> None:
        """After the last request was sent, answer or refuse all that are still under way."""

    def counters(self, place: int) -> ReplicaCounters:
        """Tell what a replica has counted."""

    def take_ongoing_s(self) -> float:
        """Give the request-seconds in replicas, or waiting for a first one, since last asked."""

    @property
    def refused(self) -> int:
        """Requests that every try refused, so far."""

    def log(self) -> list[Answered]:
        """Give the requests answered, by the time they were sent; empty if no log is kept."""
