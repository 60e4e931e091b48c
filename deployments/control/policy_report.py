"""The controller's part of `GET /sojourn/policy`: the policy in force, and why."""

from typing import Any

from deployments.control.bottleneck import bottleneck
from deployments.control.front_fit import FrontFit
from deployments.control.model_corrections import ModelCorrections
from deployments.control.policy_solver import PolicySolver
from deployments.control.response_times import ResponseTimePercentiles
from policy.batcher.core import BatcherCore


def policy_report(
    core: BatcherCore,
    solver: PolicySolver,
    corrections: ModelCorrections,
    percentiles: ResponseTimePercentiles,
    now_s: float,
) -> dict[str, Any]:
    """Return the policy in force at `now_s` (`time.monotonic`), as JSON-ready fields."""
    policy = core.policy(now_s)
    curve = solver.sla_capacity.curve
    arrival_rate_per_s = core.arrival_rate.per_s(now_s)
    limiting = bottleneck(corrections.profile, corrections.front, arrival_rate_per_s)
    return {
        "table": "solving" if solver.in_progress else "failed" if solver.error else "solved",
        "solver": solver.report(),
        "arrival_rate_per_s": arrival_rate_per_s,
        "index_of_dispersion": corrections.measured_index_of_dispersion,
        "control_limit": policy.control_limit,
        "actions": policy.actions,
        "max_wait_ms": policy.max_wait_ms,
        "longest_wait_ms": core.longest_wait_ms(policy),
        "wait_factor": core.wait_factor,
        "waiting_room": core.limits.waiting_room,
        "batch_size_limit": core.limits.max_batch_size,
        "concurrency_limit": core.limits.concurrency,
        "sla_rate_per_s": curve and curve.sla_rate_per_s,
        "bottleneck": limiting,
        "front": _front_report(corrections.front),
        "measured_ms": percentiles.measured_ms,
        "predicted_ms": percentiles.predicted_ms,
        "measured_over_predicted": percentiles.measured_over_predicted,
        # The model knows front and device, not what else uses their cores.
        "prediction_holds": limiting != "neither" and percentiles.holds,
        "profile_revisions": corrections.profile_revisions,
        "profile": corrections.profile.to_dict(),
    }


def _front_report(front: FrontFit) -> dict[str, Any]:
    """Return the front's costs in force, and how busy it is; null where not measured."""
    costs, state = front.front, front.state
    return {
        "request_ms": costs and costs.request_ms,
        "batch_ms": costs and costs.batch_ms,
        "refuse_ms": front.refuse_ms,
        "shares_cpu": costs and costs.shares_cpu,
        "utilization": state.utilization,
        "slowdown": state.slowdown,
        "lag_ms": 1e3 * state.lag_s,
    }
