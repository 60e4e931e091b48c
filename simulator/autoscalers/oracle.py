"""The oracles: least replica-seconds for a trace that is known beforehand.

A *need* is the least number of replicas that must serve in each second. Two are given: by seconds,
the requests of the second over what one replica carries within the SLA; and by windows, the least
constant number per minute at which a simulation complies. Neither is below the other everywhere. A
one-minute window may have its share of late requests, and what one second leaves in the queue the
next may work off, so the busiest second of a minute asks for more than the minute must have; but
arrivals within a second are random, and a second that is exactly full may be late by chance.

From a need, the *instant* bound changes the fleet at no cost and without delay: the sum of the
need. The *clairvoyant* knows start times: it orders each replica so that it is ready when it is
needed, pays from the order on, and keeps a replica over a gap where that costs no more than to
start another one. That is optimal, exactly:

Let R(t) >= need(t) be the replicas that serve. Its cost is at least the sum of R plus the start
time times the number of its upward steps, since each step up is a start; and with the oldest kept
longest no more than that. Both terms are sums over the levels k = 1, 2, … of the sets {R >= k}, so
each level may be treated alone: cover {need >= k} by intervals, at their lengths plus a start time
for each. A gap between two of them is best closed if it is not longer than a start time, and only
then, whatever is done with the others. The sets so found are nested (a gap of level k lies within a
gap of level k + 1), so there is an R that has them. Where a run begins with replicas that serve at
once, its beginning is a gap like any other; and to go at the end costs nothing.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from policy.errors import InvalidInputError
from simulator.results import WINDOW_S
from simulator.scaling import FleetView

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


def need_by_second(offered: ArrayLike, sla_rate_per_s: float, min_replicas: int = 1) -> IntArray:
    """Give the replicas whose rate within the SLA covers each second's requests.

    Parameters
    ----------
    offered : array of float, shape (seconds,)
        Requests of each second.
    sla_rate_per_s : float
        Highest rate of one replica within the SLA.
    min_replicas : int
        Never fewer.

    Returns
    -------
    IntArray, shape (seconds,)
    """
    if not 0 < sla_rate_per_s < math.inf:
        raise InvalidInputError(f"sla_rate_per_s: must be above 0, not {sla_rate_per_s}")
    needed = np.ceil(np.asarray(offered, dtype=float) / sla_rate_per_s - 1e-9)
    return np.maximum(min_replicas, needed.astype(np.int64))


def need_by_window(
    complies: Callable[[IntArray], BoolArray], low: ArrayLike, high: ArrayLike
) -> IntArray:
    """Find the least replicas of each window at which it complies, for all windows at once.

    By bisection, so more replicas must never do worse. A window that does not comply at its upper
    bound keeps that. Those that fail beside their neighbours at last, for what these leave in the
    queues, are raised one by one.

    Parameters
    ----------
    complies : callable
        Takes the replicas of each window, tells whether each complies: one simulation.
    low, high : array of int, shape (windows,)
        Bounds, both allowed.

    Returns
    -------
    IntArray, shape (windows,)
    """
    least, most = np.array(low, dtype=np.int64), np.array(high, dtype=np.int64)
    if least.shape != most.shape or np.any(least > most):
        raise InvalidInputError("need: the lower bounds must not be above the upper ones")
    limit = most.copy()
    while np.any(least < most):
        middle = (least + most) // 2
        enough = complies(middle)
        most = np.where(enough, middle, most)
        least = np.where(enough, least, np.minimum(middle + 1, most))
    while np.any(short := ~complies(least) & (least < limit)):
        least = least + short
    return least


def by_second(per_window: ArrayLike, seconds: int, window_s: int = WINDOW_S) -> IntArray:
    """Repeat the values of windows for their seconds; the last window may be shorter."""
    return np.repeat(np.asarray(per_window, dtype=np.int64), window_s)[:seconds]


def clairvoyant_schedule(need: ArrayLike, start_time_s: int) -> IntArray:
    """Give the replicas to have ordered in each second, starting ones included, at least cost.

    Those of the first second are the fleet to begin with, and serve at once.

    Parameters
    ----------
    need : array of int, shape (seconds,)
        Replicas that must serve.
    start_time_s : int
        From an order until the replica serves.

    Returns
    -------
    IntArray, shape (seconds,)
        Its sum is the cost in replica-seconds.
    """
    needed = np.asarray(need, dtype=np.int64)
    if needed.ndim != 1 or not needed.size or needed.min() < 0 or start_time_s < 0:
        raise InvalidInputError(
            "need: must be a number of at least 0 for each second, and so the start time"
        )
    steps = np.zeros(needed.size + 1, dtype=np.int64)
    for level in range(1, int(needed.max()) + 1):
        begins, ends = _intervals(needed >= level)
        opened = np.ones(begins.size, dtype=bool)
        opened[1:] = begins[1:] - ends[:-1] > start_time_s
        closed = np.append(opened[1:], True)
        np.add.at(steps, np.maximum(0, begins[opened] - start_time_s), 1)
        np.add.at(steps, ends[closed], -1)
    return np.cumsum(steps[:-1])


def _intervals(wanted: BoolArray) -> tuple[IntArray, IntArray]:
    """Give the first seconds of the runs of True, and the first ones after them."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], wanted.astype(np.int8), [0]))))
    return edges[0::2], edges[1::2]


class Clairvoyant:
    """Follows the cheapest schedule that has the replicas ready when they are needed.

    With a start time of 0 it is the instant bound.

    Parameters
    ----------
    need : array of int, shape (seconds,)
        Replicas that must serve in each second.
    start_time_s : float
        From an order until the replica serves; rounded up to whole seconds.
    name : str

    Attributes
    ----------
    ordered : IntArray, shape (seconds,)
        The schedule.
    """

    def __init__(self, need: ArrayLike, start_time_s: float, name: str = "oracle") -> None:
        self.name = name
        self.ordered = clairvoyant_schedule(need, math.ceil(start_time_s))

    @property
    def initial_replicas(self) -> int:
        """The fleet to begin with."""
        return int(self.ordered[0])

    @property
    def replica_seconds(self) -> float:
        """What the schedule costs."""
        return float(self.ordered.sum())

    def replicas(self, view: FleetView) -> int:
        """Give the replicas that should be ordered from now on."""
        return int(self.ordered[min(int(view.now_s), self.ordered.size - 1)])
