"""Where the autoscaler meets Ray: a policy class of Serve's autoscaling config.

Ray makes a new policy object at every change of the config, runs it ten times a second in Serve's
controller, and pickles this module by value. So this module holds nothing: the autoscalers, with
their history, live in `autoscaler.scaled_deployments`, which Ray imports as it is installed.

Where a deployment may have no replica (`min_replicas: 0`), HAProxy sends a request that finds none
to the proxy of the head node, which holds it until there is one. That tells Serve's controller at
once, and Ray orders a first replica itself, without asking a policy; how many it takes besides is
decided here as soon as that one runs.
"""

import logging
from typing import Any

from ray.serve.config import AutoscalingContext

from autoscaler.decision import Decision
from autoscaler.ray import metrics as ray_metrics
from autoscaler.ray.store import store
from autoscaler.reports import ReplicaReport
from autoscaler.scaled_deployments import ScaledDeployment, scaled_deployment
from policy.errors import InvalidInputError

logger = logging.getLogger("ray.serve")

#: Reports come once a second; to decide more often than this finds nothing new.
DECISION_PERIOD_S = 0.5


class SojournAutoscalingPolicy:
    """`policy_function: autoscaler.ray_adapter:SojournAutoscalingPolicy`."""

    def __init__(self) -> None:
        self._decided_s = 0.0
        self._replicas = 0

    def __call__(self, ctx: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """Give the number of replicas that `ctx` calls for."""
        now_s = ctx.current_time
        # A clock that was set back must not stop the decisions.
        if not 0 <= now_s - self._decided_s < DECISION_PERIOD_S:
            self._decided_s, self._replicas = now_s, ctx.target_num_replicas
            try:
                self._replicas = ordered(ctx, *considered(ctx))
            except Exception:
                # It would keep Serve's controller from all applications after this one.
                logger.exception("%s: replicas are kept as they are", ctx.deployment_name)
        return self._replicas, {}


def considered(ctx: AutoscalingContext) -> tuple[ScaledDeployment, Decision]:
    """Give the deployment of `ctx`, and what its autoscaler decides."""
    now_s = ctx.current_time
    deployment = scaled_deployment(now_s, ctx.app_name or "", ctx.deployment_name, store())
    decision = deployment.decide(
        now_s,
        reports_of(ctx),
        target_replicas=ctx.target_num_replicas,
        ready_replicas=ctx.current_num_replicas,
        min_replicas=ctx.capacity_adjusted_min_replicas,
        max_replicas=ctx.capacity_adjusted_max_replicas,
        # Behind HAProxy, requests wait in Ray's own queue only where there is no replica at all.
        waiting=0.0 if ctx.current_num_replicas else ctx.total_num_requests,
        dry_run=dry_run_of(ctx),
    )
    return deployment, decision


def ordered(ctx: AutoscalingContext, deployment: ScaledDeployment, decision: Decision) -> int:
    """Log `decision`, and give the replicas to order: in a dry run those ordered already."""
    noted = deployment.note(ctx.current_time, ctx.target_num_replicas, decision)
    ray_metrics.export(deployment.application, deployment.deployment, decision)
    if noted and decision.replicas != ctx.target_num_replicas:
        logger.info("%s: %s", ctx.deployment_name, decision.reason)
    replicas: int = ctx.target_num_replicas if deployment.dry_run else decision.replicas
    return replicas


def reports_of(ctx: AutoscalingContext) -> list[ReplicaReport]:
    """Turn Ray's table of metrics by name and replica into the latest report of each replica."""
    latest: dict[str, dict[str, float]] = {}
    recorded_s: dict[str, float] = {}
    for name, by_replica in (ctx.raw_metrics or {}).items():
        for replica_id, series in by_replica.items():
            if series:
                replica = replica_id.unique_id
                latest.setdefault(replica, {})[name] = series[-1].value
                recorded_s[replica] = max(recorded_s.get(replica, 0.0), series[-1].timestamp)
    reports = []
    for replica, values in latest.items():
        # A replica that is not configured yet reports nothing but Ray's own numbers.
        if "offered_total" in values:
            # A clock that is ahead must not make what others tell look old.
            time_s = min(recorded_s[replica], ctx.current_time)
            try:
                reports.append(ReplicaReport.from_floats(replica, time_s, values))
            except InvalidInputError as error:
                logger.warning("a report is left out: %s", error)
    return reports


def dry_run_of(ctx: AutoscalingContext) -> bool | None:
    """Tell whether the replica that reported last wants a dry run; None where none has."""
    series = (ctx.raw_metrics or {}).get("dry_run", {}).values()
    values = [points[-1] for points in series if points]
    if not values:
        return None
    return bool(max(values, key=lambda point: point.timestamp).value)
