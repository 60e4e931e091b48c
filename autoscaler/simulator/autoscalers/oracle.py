"""The oracle: the fewest replica-seconds for a trace that is known in advance.

*Required replicas* are how many must serve in each second: the requests of the second over the
highest rate of a replica within the SLA. That is more than a one-minute window needs, which
may have its share of late requests; `autoscaler.simulator.autoscalers.bound` bounds what any fleet
needs.

The *instant* bound changes the fleet without cost or delay: the sum of the required replicas. The
*clairvoyant* schedule has the start time in advance. It orders each replica so that it is ready
when it is required, pays from the order on, and keeps a replica over a gap if that costs no more
than starting another. This is optimal:

Let R(t) >= required(t) be the replicas that serve. The cost of R is at least its sum plus the start
time for each step up, since each step up is a start; keeping the oldest longest attains it. Both
terms are sums over the levels k = 1, 2, … of the sets {R >= k}, so each level can be solved alone:
cover {required >= k} by intervals, each of which costs its length and one start time. Closing the
gap between two of them pays if and only if the gap is no longer than a start time, whatever is done
about the others. The resulting sets are nested, because a gap of level k lies within a gap of level
k + 1, so some R has them. The time before a level first serves is a gap like any other, since a run
may begin with replicas that serve at once; leaving at the end costs nothing.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autoscaler.simulator.scaling import FleetView

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


def required_replicas_by_second(
    offered: ArrayLike, sla_rate_per_s: float, min_replicas: int = 1
) -> IntArray:
    """Return the replicas whose rate within the SLA, above 0, covers each second's requests."""
    required = np.ceil(np.asarray(offered, dtype=float) / sla_rate_per_s - 1e-9)
    return np.maximum(min_replicas, required.astype(np.int64))


def clairvoyant_schedule(required_replicas: ArrayLike, start_time_s: int) -> IntArray:
    """Return the replicas ordered in each second by the cheapest schedule that has those required.

    Starting replicas are included, so the sum is the cost in replica-seconds. The replicas of the
    first second are the initial fleet and serve at once.
    """
    required = np.asarray(required_replicas, dtype=np.int64)
    steps = np.zeros(required.size + 1, dtype=np.int64)
    for level in range(1, int(required.max()) + 1):
        begins, ends = _true_intervals(required >= level)
        opened = np.ones(begins.size, dtype=bool)
        opened[1:] = begins[1:] - ends[:-1] > start_time_s
        closed = np.append(opened[1:], True)
        np.add.at(steps, np.maximum(0, begins[opened] - start_time_s), 1)
        np.add.at(steps, ends[closed], -1)
    return np.cumsum(steps[:-1])


def _true_intervals(mask: BoolArray) -> tuple[IntArray, IntArray]:
    """Return the first index of each run of True, and the first index after it."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask.astype(np.int8), [0]))))
    return edges[0::2], edges[1::2]


class Clairvoyant:
    """Follows the cheapest schedule that has the required replicas ready in time.

    With a start time of 0 it is the instant bound. The start time is rounded up to whole seconds.
    """

    name = "oracle"

    def __init__(self, required_replicas: ArrayLike, start_time_s: float) -> None:
        self.ordered = clairvoyant_schedule(required_replicas, math.ceil(start_time_s))

    @property
    def initial_replicas(self) -> int:
        return int(self.ordered[0])

    def replicas(self, view: FleetView) -> int:
        return int(self.ordered[min(int(view.now_s), self.ordered.size - 1)])
