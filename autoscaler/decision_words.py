"""The reason of a decision in words: where its demand comes from, and what else is to be known.

A remark follows the reason: it begins with a semicolon, or is empty if there is nothing to say.
"""

from autoscaler.decision import FleetState
from autoscaler.fleet_status import SLOW_INTERVAL_S, FleetStatus
from autoscaler.settings import AutoscalerSettings
from autoscaler.sizing.sla_rate_correction import MIN_CORRECTION


def origin_in_words(status: FleetStatus, risk: float, settings: AutoscalerSettings) -> str:
    """Return where the demand comes from: what is measured now, or a forecast at a risk.

    Parameters
    ----------
    status : FleetStatus
    risk : float
        The risk that the forecast was asked for.
    settings : AutoscalerSettings
        May set the risk; otherwise it is adapted.
    """
    if status.urgency:
        return f"ahead of the forecast, because {status.urgency}"
    adapted = ""
    if settings.risk is None:
        adapted = f" (adapted so that {settings.compliant_minutes:g}% of the minutes comply)"
    return f"by {status.forecast.method} at a risk of {risk:.2g}{adapted}"


def correction_remark(correction: float) -> str:
    """Remark that the correction of the SLA rate is as low as it may be."""
    if correction > MIN_CORRECTION:
        return ""
    return (
        "; devices are slower than their profile, and the correction is at its minimum of "
        f"{correction:g}"
    )


def bottleneck_remark(bottleneck: str | None) -> str:
    """Remark what limits most replicas, one of `autoscaler.reports.BOTTLENECKS`."""
    if bottleneck is None:
        return ""
    if bottleneck == "neither":
        return (
            "; bottleneck: neither front nor device; other processes use the replicas' cores, or "
            "HAProxy is too busy (another replica beside them does not help)"
        )
    return f"; bottleneck: {bottleneck}"


def report_remark(status: FleetStatus) -> str:
    """Remark that replicas do not report, or seldom."""
    remark = ""
    if status.silent_replicas:
        remark = (
            f"; replicas that serve without reporting: {status.silent_replicas}, with the mean "
            "load of the others"
        )
    if status.report_interval_s >= SLOW_INTERVAL_S:
        remark += (
            f"; reports come only every {status.report_interval_s:.0f} s, set metrics_interval_s: 1"
        )
    return remark


def stuck_remark(stuck_replicas: int, fleet: FleetState) -> str:
    """Remark that replicas which were ordered long ago do not start."""
    if not stuck_replicas:
        return ""
    return (
        f"; only {fleet.ready_replicas} of {fleet.current_replicas} serve: {stuck_replicas} do not "
        "start (is there room for them on the cluster?)"
    )
