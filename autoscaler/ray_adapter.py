"""The one place where the autoscaler meets Ray: a policy class of Serve's autoscaling config.

Ray makes a new policy object at every change of the config, runs it ten times a second in Serve's
controller, and pickles this module by value. So this module holds nothing: the autoscalers, with
their history, live in `autoscaler.registry`, which Ray imports as it is installed.
"""

import logging
from typing import Any

from ray.serve.config import AutoscalingContext

from autoscaler.registry import autoscaler_of
from autoscaler.reports import ReplicaReport
from sojourn.errors import InvalidInputError

logger = logging.getLogger("ray.serve")

#: Reports come once a second; to decide more often than this finds nothing new.
DECISION_PERIOD_S = 0.5


class SojournAutoscalingPolicy:
    """`policy_function: autoscaler.ray_adapter:SojournAutoscalingPolicy`."""

    def __init__(self) -> None:
        self._decided_s = -DECISION_PERIOD_S
        self._replicas = 0
        self._reason = ""

    def __call__(self, ctx: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """Give the number of replicas that `ctx` calls for."""
        now_s = ctx.current_time or 0.0
        if self._replicas and now_s - self._decided_s < DECISION_PERIOD_S:
            return self._replicas, {}
        autoscaler = autoscaler_of(str(ctx.deployment_id))
        autoscaler.observe(reports_of(ctx))
        decision = autoscaler.decide(
            now_s,
            current_replicas=ctx.target_num_replicas,
            min_replicas=ctx.capacity_adjusted_min_replicas,
            max_replicas=ctx.capacity_adjusted_max_replicas,
        )
        if decision.replicas != ctx.target_num_replicas:
            logger.info(
                "%s: %d -> %d replicas: %s",
                ctx.deployment_name,
                ctx.target_num_replicas,
                decision.replicas,
                decision.reason,
            )
        self._decided_s, self._replicas = now_s, decision.replicas
        return decision.replicas, {}


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
            try:
                reports.append(ReplicaReport.from_floats(replica, recorded_s[replica], values))
            except InvalidInputError as error:
                logger.warning("a report is left out: %s", error)
    return reports
