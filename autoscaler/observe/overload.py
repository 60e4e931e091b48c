"""The rate to size for while requests are lost already, ahead of the forecast.

The forecast sees a jump as the minute's requests show it, and sizes by a model of the replicas. If
far more requests are given up than the SLA allows, or a backlog waits, both may be wrong, and there
is no time to find out which. So one rule applies then: size for

    need = x · max(1, c / μ) + backlog / drain time,   at most 1.5 x,

with x the highest rate of the last seconds, c the capacity of a replica by the model, and μ what a
replica accepted while it refused the rest: its true capacity. The need is a level and not a step:
it does not depend on what was ordered, so orders that start slowly or not at all do not wind it up.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoscaler.observe.offered_load import RecentAttempts
from autoscaler.observe.retries import given_up_share, retries_among

#: The most that is ordered for, as a multiple of what was truly offered.
MAX_OVER_OFFERED = 1.5
#: So many times the share that may miss the SLA must be given up. From smaller errors the model of
#: the replicas learns (`autoscaler.sizing.sla_rate_correction`), which it could not if they were
#: made good at once, again and again.
URGENT = 5.0
#: Seconds in which a backlog is to be worked off.
DRAIN_S = 10.0
#: Seconds in which replicas must have been full before what they accepted is their capacity.
_LEAST_FULL_S = 3
#: Replicas that come or go between two seconds in which their number is the same.
_STEADY = 0.5


@dataclass(frozen=True)
class OverloadNeed:
    """The rate to size for, 0 if nothing calls for one, and what calls for it, in words."""

    rate_per_s: float = 0.0
    reason: str = ""


def overload_need(
    recent: RecentAttempts,
    capacity_per_s: float | None,
    late_share_allowed: float,
    retries: int,
    backlog: float,
) -> OverloadNeed:
    """Return the rate to size for by what is measured now.

    `capacity_per_s` is what a full replica accepts by the model; None if unknown. `backlog`
    requests wait in the replicas beyond what is normal.
    """
    if backlog <= 0 and not recent.refusals.any():
        return OverloadNeed()
    replicas = recent.replicas.sum() / max(1, recent.replicas.size)
    counts = (recent.attempts, recent.refusals, recent.by_balancer)
    tried, refused, denied = (count.sum() for count in counts)
    given_up = float(given_up_share(tried, refused, denied, retries_among(replicas, retries)))
    is_refusing = given_up > min(URGENT * late_share_allowed, 0.5)
    if not is_refusing and backlog <= 0:
        return OverloadNeed()
    offered_per_s = float(np.max(recent.offered_per_s, initial=0.0))
    slower = 1.0
    if is_refusing and capacity_per_s:
        by_second = retries_among(recent.replicas, retries)
        full = given_up_share(*counts, by_second) > late_share_allowed
        slower = max(1.0, capacity_per_s / _measured_capacity_per_s(recent, full))
    need = offered_per_s * slower + backlog / DRAIN_S
    reasons = [f"{given_up:.2g} of the requests are given up"] * is_refusing
    reasons += [f"{backlog:.0f} wait"] * (backlog > 0)
    return OverloadNeed(min(need, MAX_OVER_OFFERED * offered_per_s), " and ".join(reasons))


def _measured_capacity_per_s(recent: RecentAttempts, full: NDArray[np.bool_]) -> float:
    """Return what a replica accepts per second while it is full; infinity if that is not known.

    The first full second is left out, because the replicas were not full in all of it, and so are
    seconds in which replicas began to serve, which fill up only then.
    """
    is_steady = full[1:] & full[:-1] & (np.abs(np.diff(recent.replicas)) < _STEADY)
    used = 1 + np.flatnonzero(is_steady)
    accepted = float((recent.attempts - recent.refusals)[used].sum())
    served_s = float(recent.replicas[used].sum())
    if used.size < _LEAST_FULL_S or served_s <= 0 or accepted <= 0:
        return math.inf
    return accepted / served_s
