"""What the autoscaler decided, and why."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Decision:
    """How many replicas there should be, and why.

    Attributes
    ----------
    replicas : int
    reason : str
        One line for people.
    arrival_rate_per_s : float or None
        What clients offer now; None where that is not known.
    forecast_per_s : float or None
        The rate to expect until a replica ordered now has started.
    required_replicas : int or None
        What the demand calls for now, before the scale-in hold.
    predicted_service_level : float or None
        Fraction of the requests in time with `replicas` replicas under the demand.
    backlog : float
        Requests that wait beyond what is ordinary.
    horizon_s : float
        How far the forecast looks ahead: the time that a replica takes to start.
    demand_per_s : float or None
        The rate that was sized for: the forecast with its margin, the burst factor and the backlog.
    method : str
        The forecast that was used.
    margin : float
        What the forecast was multiplied by so that it is exceeded with a chance of `risk` alone.
    sla_rate_per_s : float or None
        What one replica takes under the SLA, corrected; None where replicas do not tell.
    correction : float
        What the rate that the replicas tell was multiplied by, from what was measured.
    model_error : float or None
        Measured less predicted share of late requests; None while nothing can be told.
    hold_s : float
        How long fewer replicas must have been enough before some go.
    """

    replicas: int
    reason: str
    arrival_rate_per_s: float | None = None
    forecast_per_s: float | None = None
    required_replicas: int | None = None
    predicted_service_level: float | None = None
    backlog: float = 0.0
    horizon_s: float = 0.0
    demand_per_s: float | None = None
    method: str = ""
    margin: float = 1.0
    sla_rate_per_s: float | None = None
    correction: float = 1.0
    model_error: float | None = None
    hold_s: float = 0.0
