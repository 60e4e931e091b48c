"""What limits a replica: its front, its device, or neither: shared cores."""

from typing import Literal

from deployments.control.front_fit import FrontFit
from policy.profile import Profile

#: One of `autoscaler.reports.BOTTLENECKS`.
Bottleneck = Literal["device", "front", "neither"]


def bottleneck(profile: Profile, front: FrontFit, arrival_rate_per_s: float) -> Bottleneck:
    """Return what limits a replica, at a load and with the batches of the last minutes.

    Parameters
    ----------
    profile : Profile
        The profile in force.
    front : FrontFit
    arrival_rate_per_s : float

    Returns
    -------
    str
        ``neither`` if the event loop is held up mainly by other processes on its cores; else the
        stage that spends more time per request.
    """
    if front.state.shares_cores:
        return "neither"
    return profile.bottleneck(arrival_rate_per_s, front.mean_batch_size)
