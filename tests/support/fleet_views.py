"""Hand-made views of a fleet, on virtual time."""

import numpy as np

from autoscaler.reports import ReplicaReport
from simulator.scaling import FleetView, ScalingPolicy


def view(
    now_s: float,
    *,
    offered: float = 0.0,
    ongoing: float = 0.0,
    ready: int = 1,
    ordered: int | None = None,
    start_times_s: tuple[float, ...] = (),
    reports: tuple[ReplicaReport, ...] = (),
) -> FleetView:
    """Return the view at the end of a second; by default all ordered replicas are ready."""
    return FleetView(
        now_s=now_s,
        ordered=ready if ordered is None else ordered,
        ready=ready,
        offered=offered,
        refused=0.0,
        ongoing=ongoing,
        start_times_s=np.array(start_times_s),
        reports=lambda: list(reports),
    )


def follow(policy: ScalingPolicy, offered: list[float], ongoing_per_request: float = 0.0):
    """Apply a policy's decisions at once, second by second; return the sizes of the fleet."""
    sizes = [1]
    for second, requests in enumerate(offered, start=1):
        seen = view(
            second, offered=requests, ongoing=ongoing_per_request * requests, ready=sizes[-1]
        )
        sizes.append(policy.replicas(seen))
    return sizes[1:]
