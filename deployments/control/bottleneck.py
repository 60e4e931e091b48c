"""What limits a replica: its front, its device, or neither: the balancer, or shared cores."""

from typing import Literal

from deployments.control.front_fit import FrontFit
from policy.profile import Profile
from policy.response_time.way import BalancerLoad

#: One of `autoscaler.reports.BOTTLENECKS`.
Bottleneck = Literal["device", "front", "neither"]


#: A balancer that is busier than this limits the replicas behind it.
MAX_BALANCER_UTILIZATION = 0.8


def bottleneck(
    profile: Profile,
    front: FrontFit,
    arrival_rate_per_s: float,
    balancer: BalancerLoad | None = None,
) -> Bottleneck:
    """Return what limits a replica, at a load and with the batches of the last minutes.

    Parameters
    ----------
    profile : Profile
        The profile in force.
    front : FrontFit
    arrival_rate_per_s : float
    balancer : BalancerLoad, optional
        None: not known.

    Returns
    -------
    str
        ``neither`` if the event loop is held up mainly by other processes on its cores, or if the
        balancer is nearly always busy; else the stage that spends more time per request.
    """
    if front.state.shares_cores:
        return "neither"
    if balancer is not None and balancer.utilization > MAX_BALANCER_UTILIZATION:
        return "neither"
    return profile.bottleneck(arrival_rate_per_s, front.mean_batch_size)
