"""What a simulation tells its engine about the replicas, and what it learns from it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoscaler.simulator.engines.kernel import BINS, BINS_PER_OCTAVE, MAX_EXPONENT, MIN_EXPONENT
from policy.latency_quantiles import LatencyQuantiles
from policy.service_model import ServiceModel
from policy.tables.table import PolicyTable

FloatArray = NDArray[np.float64]


class Routing(StrEnum):
    """The balancer's rule for picking a replica.

    A retry never goes to the replica that has just refused, unless it is the only ready one. A
    refusal by the only ready replica is final, as in `deployments.haproxy.refusals`.
    """

    RANDOM = "random"  # RAND: HAProxy's random(1)
    POWER_OF_TWO = "power-of-two"  # HAProxy's random(2): the less loaded of two random ones
    LEAST_CONNECTIONS = "least-connections"  # HAProxy's leastconn, with ties broken at random


@dataclass(frozen=True, eq=False)
class BatchTimes:
    """The distribution of the time of a batch, as a ratio to its latency in the limits.

    A batch of b has the ratio ``ratios[b - 1, i]`` with probability ``ranks[i] - ranks[i - 1]``;
    there are none if batch times do not vary.
    """

    ranks: FloatArray
    ratios: FloatArray

    @classmethod
    def of(cls, quantiles: LatencyQuantiles | None) -> "BatchTimes":
        """Return the distribution that `policy.response_time` computes with."""
        if quantiles is None:
            return cls(np.empty(0), np.empty((0, 0)))
        ratios, weights = quantiles.points
        return cls(np.cumsum(weights), np.ascontiguousarray(ratios))


@dataclass(frozen=True, eq=False)
class ReplicaModel:
    """The properties that all replicas of a simulated fleet share.

    Requests cost an event loop in parallel with the device `request_ms` each, and `batch_ms` per
    finished batch, first come first served. Without one, they reach the device at once, and answers
    leave at once. The service's delays must have a number of retries.
    """

    service: ServiceModel
    table: PolicyTable
    routing: Routing

    @property
    def idle_power_w(self) -> float:
        """The power of an idle device; 0 if it is not known.

        The engine counts the energy of a batch without what the device would draw idle in its time;
        `autoscaler.simulator.simulation` adds that for all the time that a replica exists.
        """
        return self.service.profile.idle_power_w or 0.0

    @property
    def concurrency(self) -> int:
        limits = self.service.limits
        return limits.concurrency or limits.max_queue_rows + limits.max_batch_size

    @property
    def retries(self) -> int:
        assert self.service.delays.retries is not None
        return self.service.delays.retries


class ReplicaCounters(NamedTuple):
    """A replica's counters since it was added.

    `offered` and `refused` are attempts, `completed` are answers. `late` are answers later than the
    SLA at the replica allows, from the request's arrival there to the end of its batch; those that
    `expired` count as well: accepted and dropped, because a batch would have answered them too
    late.
    """

    offered: int
    refused: int
    completed: int
    late: int
    expired: int
    waiting: int


class AnsweredRequest(NamedTuple):
    """An entry of the request log; `attempts` include the one that was accepted."""

    sent_s: float
    response_ms: float
    batch_size: int
    attempts: int


class FleetWork(NamedTuple):
    """The batches of all replicas, and how long their devices and event loops were busy."""

    batches: int
    devices_busy_s: float
    loops_busy_s: float


def bin_edges_ms() -> FloatArray:
    """Return the edges of the response-time histogram, from a microsecond to hours, ascending."""
    octaves = 2.0 ** np.arange(MIN_EXPONENT, MAX_EXPONENT)
    steps = 1 + np.arange(BINS_PER_OCTAVE) / BINS_PER_OCTAVE
    return np.append(np.outer(octaves, steps), 2.0**MAX_EXPONENT)


@dataclass(frozen=True, eq=False)
class FleetCounters:
    """Answers, refusals and energy of a whole fleet, arrays of shape (seconds,), and a histogram.

    Requests in time and refused by every try count in the second in which the client sent them.
    Batches that start after the last second count their energy in it.
    """

    in_time: FloatArray
    refused: FloatArray
    energy_j: FloatArray
    histogram: FloatArray

    @classmethod
    def zeros(cls, seconds: int) -> "FleetCounters":
        return cls(np.zeros(seconds), np.zeros(seconds), np.zeros(seconds), np.zeros(BINS))
