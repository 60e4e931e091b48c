"""The routing of a simulation, and what it learns from its engine."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoscaler.simulator.engines.kernel import BINS, BINS_PER_OCTAVE, MAX_EXPONENT, MIN_EXPONENT

FloatArray = NDArray[np.float64]


class Routing(StrEnum):
    """The balancer's rule for picking a replica.

    A retry never goes to the replica that has just refused, unless it is the only ready one. A
    refusal by the only ready replica is final, as in `deployments.haproxy.refusals`.
    """

    RANDOM = "random"  # RAND: HAProxy's random(1)
    POWER_OF_TWO = "power-of-two"  # HAProxy's random(2): the less loaded of two random ones
    LEAST_CONNECTIONS = "least-connections"  # HAProxy's leastconn, with ties broken at random


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
