"""Remarks on a decision's reason: each begins with a semicolon, or is empty."""

from autoscaler.decision import FleetState
from autoscaler.observe.fleet_monitor import SLOW_INTERVAL_S, FleetStatus
from autoscaler.sizing.sla_rate_correction import MIN_CORRECTION


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
    if bottleneck == "neither":
        return (
            "; bottleneck: neither event loop nor device; other processes use the replicas' "
            "cores (another replica on the same machine does not help)"
        )
    return "" if bottleneck is None else f"; bottleneck: {bottleneck.replace('_', ' ')}"


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


def pending_remark(pending: int, fleet: FleetState) -> str:
    """Remark that replicas which were ordered long ago do not start."""
    if not pending:
        return ""
    return (
        f"; only {fleet.total_ready} of {fleet.total_ordered} serve: {pending} do not start "
        "(is there room for them on the cluster?)"
    )
