"""A lower bound on the cost of every fleet that holds its windows, on a trace known in advance.

The two oracles (`autoscaler.simulator.autoscalers.oracle`) are schedules, and neither is the
cheapest one. The
oracle by seconds never uses the late requests that a window allows, and the oracle by windows never
changes within a window. This module bounds the cost of all schedules from below:

    minimize    sum_t R(t) + s * sum_t max(0, R(t) - R(t - 1))
    subject to  sum_{t in w} late_t(R(t)) <= a * N_w   for each window w,    R(t) >= 1 an integer,

with the start time s, the share a that the SLA allows late, and N_w requests in window w. R(-1) is
free, because the fleet that a run begins with serves at once. R replicas answer at most c requests
each in a second, so at least late_t(R) = max(0, n(t) - c R) of its n(t) requests are late.
c is the capacity of the device, above the rate that it handles within the SLA.

Give each late request of window w a price p_w >= 0, and drop the constraint:

    L(p) = min over R of  sum_t [R(t) + p_w late_t(R(t))] + s * sum_t max(0, R(t) - R(t - 1))
           - sum_w p_w a N_w.

Every schedule that meets the constraints costs at least L(p), whatever the prices (weak duality).
The minimum is a sum over the levels k = 1, 2, … of the sets {R >= k}, so each level is solved
alone, by a dynamic program with two states. The prices are raised where a window has too many late
requests and lowered where it has fewer, and the highest L(p) that was met is the bound.

The problem is second by second: a request is answered in the second in which it arrives, or is
late. A fleet may take up to the SLA's response time T longer, and so can do a little better where
the load changes within seconds. Then S(t) = max(R(t), R(t + 1)) replicas answer at most (1 + T) c
S(t) requests of second t, and S costs what R does if each start costs a second less. So the bound
for a capacity of (1 + T) c and a start time of s - 1 holds for every fleet, but is far lower where
a load is steady. The tests enumerate all schedules, for the one of this problem, for the other of
simulated fleets.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autoscaler.simulator.engines.compiling import compiled
from autoscaler.simulator.results import WINDOW_S

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_ROUNDS = 80
#: Factor by which a price rises in the first round if twice the allowed requests are late.
_FIRST_STEP = 1.8
_LAST_STEP = 1.02


def bound_replica_seconds(
    offered: ArrayLike,
    capacity_per_s: float,
    late_share_allowed: float,
    start_time_s: float,
    *,
    window_s: int = WINDOW_S,
    rounds: int = _ROUNDS,
) -> float:
    """Return a lower bound on the replica-seconds of any fleet that holds all windows.

    `late_share_allowed`, from 0 to below 1, is of each window's requests. A replica is paid for
    from its order, and serves `start_time_s` later. The prices are improved in `rounds`.
    """
    counts = np.asarray(offered, dtype=np.float64)
    starts = np.arange(0, counts.size, window_s)
    lengths = np.diff(np.append(starts, counts.size))
    allowed = late_share_allowed * np.add.reduceat(counts, starts)
    levels = math.ceil(float(counts.max()) / capacity_per_s - 1e-9)
    prices = np.full(starts.size, 2.0 / capacity_per_s)
    replicas = np.empty(counts.size, np.int64)
    came = np.empty(counts.size, np.uint8)
    best = float(counts.size)
    for step in np.geomspace(_FIRST_STEP, _LAST_STEP, rounds):
        replicas[:] = 1
        cost = _solve(
            counts, np.repeat(prices, lengths), capacity_per_s, start_time_s, levels, replicas, came
        )
        best = max(best, cost - float(prices @ allowed))
        late = np.add.reduceat(np.maximum(0.0, counts - capacity_per_s * replicas), starts)
        excess = late / np.maximum(allowed, 1e-9) - 1.0
        prices = prices * step ** np.clip(excess, -1.0, 2.0)
    return best


@compiled
def _solve(
    counts: FloatArray,
    prices: FloatArray,
    capacity_per_s: float,
    start_time_s: float,
    levels: int,
    replicas: IntArray,
    came: NDArray[np.uint8],
) -> float:
    """Return the least cost with late requests at these prices.

    `replicas` holds 1 at first, and then the replicas of every second. `came` is space
    for the decisions: bit 0 if being off at t follows from on, bit 1 if on follows from off.
    """
    seconds = counts.size
    cost = float(seconds)
    for t in range(seconds):
        cost += prices[t] * max(0.0, counts[t] - capacity_per_s)
    for level in range(2, levels + 1):
        off, on = 0.0, 0.0
        for t in range(seconds):
            left = counts[t] - capacity_per_s * (level - 1)
            here = 1.0 - prices[t] * min(max(left, 0.0), capacity_per_s)
            flags = 0
            off_now, on_now = off, on + here
            if t > 0 and on < off:
                off_now, flags = on, 1
            if t > 0 and off + start_time_s < on:
                on_now, flags = off + start_time_s + here, flags | 2
            came[t] = flags
            off, on = off_now, on_now
        cost += min(off, on)
        is_on = on < off
        for t in range(seconds - 1, -1, -1):
            replicas[t] += is_on
            is_on = not came[t] & 2 if is_on else bool(came[t] & 1)
    return cost
