"""The state of a fleet at one moment, as far as its replicas' reports tell it."""

from dataclasses import dataclass

from autoscaler.forecasting.demand import DemandForecast

#: Reports should come every second. From this interval on, the load is noticed late.
SLOW_INTERVAL_S = 2.5


@dataclass(frozen=True)
class FleetStatus:
    """The state of the fleet, from the latest reports.

    Attributes
    ----------
    replicas : int
        Replicas with a timely report.
    silent_replicas : int
        Replicas that serve and should report, but do not; `offered_per_s`, `forecast` and `backlog`
        include their share.
    carrying_replicas : int
        Replicas whose load is known or extrapolated.
    report_interval_s : float
        Time between two reports of a replica.
    offered_per_s : float
        Requests per second that clients offer, as the mean over the rate window.
    forecast : DemandForecast
    backlog : float
        Requests in the queues beyond what is normal.
    demand_per_s : float
        Requests per second to size for: the forecast with the burst factor, or what is measured
        now to be needed, if that is more (`autoscaler.fast_loop`).
    urgency : str
        Why it is more, for people; empty if it is not.
    bottleneck : str or None
        What limits most replicas, one of `autoscaler.reports.BOTTLENECKS`; None if unknown.
    """

    replicas: int
    silent_replicas: int
    carrying_replicas: int
    report_interval_s: float
    offered_per_s: float
    forecast: DemandForecast
    backlog: float
    demand_per_s: float
    urgency: str = ""
    bottleneck: str | None = None


@dataclass(frozen=True)
class UnknownStatus:
    """The state of the fleet cannot be told from the reports.

    Attributes
    ----------
    reason : str
        One line for people.
    is_stale : bool
        Whether reports used to come and have stopped.
    """

    reason: str
    is_stale: bool = False
