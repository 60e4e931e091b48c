"""The autoscaling policy of one deployment, in Ray Serve's terms.

Ray makes a new policy object at every change of the config, calls it ten times a second in Serve's
controller, and pickles this module by value. So this module holds no state: the autoscalers and
their history live in `autoscaler.scaled_deployments`, which Ray imports as installed.

A deployment may have no replica (`min_replicas: 0`). HAProxy then sends a request to the proxy on
the head node, which holds it until there is one and notifies Serve's controller at once. Ray orders
a first replica itself, without asking a policy. How many more are needed is decided here as soon as
that one runs.
"""

import heapq
import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from ray.serve.config import AutoscalingContext

from autoscaler.decision import Decision, FleetState
from autoscaler.ray import metrics as ray_metrics
from autoscaler.ray.store import store
from autoscaler.reports import SCALARS, SERIES, ReplicaReport
from autoscaler.scaled_deployments import ScaledDeployment, scaled_deployment
from autoscaler.shared_budget import Claim, check_budget, decide_within_budget
from policy.errors import InvalidInputError

logger = logging.getLogger("ray.serve")

#: Reports of replicas through Ray: values with their time, by the name of the metric and replica.
RawMetrics = Mapping[str, Mapping[Any, Sequence[Any]]]

#: So many reports are read. Of more replicas, those with the first ids count, which are random, for
#: all: with random routing they take the same load.
MAX_REPORTS = 300
#: Reports come once a second, so more frequent decisions would see nothing new.
DECISION_PERIOD_S = 0.5


class SteadyClock:
    """The wall clock, but for its steps back: then it goes on as if there had been none.

    Seconds that were counted already cannot come again, and the forecasts go by the time of day.
    """

    def __init__(self) -> None:
        self._last_s = self._last_monotonic_s = float("-inf")

    def now_s(self, wall_s: float, monotonic_s: float) -> float:
        passed_s = monotonic_s - self._last_monotonic_s
        is_first = self._last_s == float("-inf")
        self._last_s = wall_s if is_first else max(wall_s, self._last_s + passed_s)
        self._last_monotonic_s = monotonic_s
        return self._last_s


class SojournAutoscalingPolicy:
    """The policy of one deployment's ``autoscaling_config``.

    In the config file::

        policy:
          policy_function: autoscaler.ray_adapter:SojournAutoscalingPolicy
          policy_kwargs: {replica_budget: 8}   # if deployments are to share a limit

    A change of `policy_kwargs` replaces all replicas, because they are part of the deployment's
    code version to Ray.
    """

    def __init__(self, replica_budget: int | None = None) -> None:
        if replica_budget is not None:
            check_budget(replica_budget)
        self._replica_budget = replica_budget
        self._clock = SteadyClock()
        self._decided_s = 0.0
        self._replicas = 0

    def __call__(self, ctx: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """Return the number of replicas for the deployment of `ctx`, and no policy state."""
        now_s = self._clock.now_s(ctx.current_time, time.monotonic())
        if now_s - self._decided_s >= DECISION_PERIOD_S:
            self._decided_s, self._replicas = now_s, ctx.target_num_replicas
            try:
                may_have_standbys = self._replica_budget is None
                deployment, decision = _decide(ctx, now_s, may_have_standbys=may_have_standbys)
                if self._replica_budget is not None:
                    claim = _claim(ctx, deployment, decision)
                    granted = decide_within_budget(now_s, claim, self._replica_budget, decision)
                    decision = decision if deployment.dry_run else granted
                self._replicas = _apply(ctx, now_s, deployment, decision)
            except Exception:
                # An exception would keep Serve's controller from scaling the other applications.
                logger.exception(
                    "%s: the autoscaler failed; replicas are kept as they are", ctx.deployment_name
                )
        return self._replicas, {}


def _decide(
    ctx: AutoscalingContext, now_s: float, *, may_have_standbys: bool
) -> tuple[ScaledDeployment, Decision]:
    """Return the entry of the deployment of `ctx`, and its autoscaler's decision.

    A shared budget knows replicas only, so a deployment that names one has no standbys.
    """
    metrics: RawMetrics = ctx.raw_metrics or {}
    deployment = scaled_deployment(now_s, ctx.app_name or "", ctx.deployment_name, store())
    deployment.autoscaler.may_have_standbys = may_have_standbys
    reporting = metrics.get("offered_total", {})
    sample: Collection[Any] = reporting
    if len(reporting) > MAX_REPORTS:
        sample = heapq.nsmallest(MAX_REPORTS, reporting, key=attrgetter("unique_id"))
    dry_run = _newest(metrics, sample, "dry_run")
    decision = deployment.decide(
        now_s,
        replica_reports(metrics, sample, deployment.reports),
        FleetState(
            current_replicas=ctx.target_num_replicas,
            ready_replicas=ctx.current_num_replicas,
            min_replicas=ctx.capacity_adjusted_min_replicas,
            max_replicas=ctx.capacity_adjusted_max_replicas,
            # Behind HAProxy, requests wait in Ray's own queue only if there is no replica at all.
            waiting=0.0 if ctx.current_num_replicas else ctx.total_num_requests,
        ),
        weight=len(reporting) / max(1, len(sample)),
        running=[replica.unique_id for replica in ctx.running_replicas],
        dry_run=None if dry_run is None else bool(dry_run),
        history=int(_newest(metrics, sample, "history_code") or 0),
    )
    return deployment, decision


def _claim(ctx: AutoscalingContext, deployment: ScaledDeployment, decision: Decision) -> Claim:
    """Return what the deployment of `ctx` asks of a shared budget.

    In a dry run, or while its load is unknown, it keeps its replicas.
    """
    held, least = ctx.target_num_replicas, ctx.capacity_adjusted_min_replicas
    if not ctx.current_num_replicas and ctx.total_num_requests > 0:
        # Ray starts a first replica for waiting requests, whatever the policy says.
        least = max(1, least, held)
    if deployment.dry_run:
        least = max(least, held)
    return Claim(
        name=f"{deployment.application}#{deployment.deployment}",
        min_replicas=least,
        wanted_replicas=max(least, 0 if deployment.dry_run else decision.replicas),
        held_replicas=held,
        keeps_held=decision.demand_per_s is None,
    )


def _apply(
    ctx: AutoscalingContext, now_s: float, deployment: ScaledDeployment, decision: Decision
) -> int:
    """Record and export `decision`, and return what to order of Ray, in a dry run no change.

    To Ray, standbys are replicas.
    """
    recorded = deployment.record(now_s, ctx.target_num_replicas, decision)
    ray_metrics.export(deployment.application, deployment.deployment, decision)
    ordered = decision.replicas + decision.standbys
    if recorded and ordered != ctx.target_num_replicas:
        logger.info("%s: %s", ctx.deployment_name, decision.reason)
    target: int = ctx.target_num_replicas if deployment.dry_run else ordered
    return target


def replica_reports(
    metrics: RawMetrics, sample: Iterable[Any], known: Iterable[ReplicaReport] = ()
) -> list[ReplicaReport]:
    """Return the latest report of each replica of a sample, from Ray's metrics.

    Values come with their time, oldest first; Ray stamps all values of a report with the same time.
    The reports known at the last decision that are still the latest are not read again.
    """
    known_by_replica = {report.replica_id: report for report in known}
    offered = metrics.get("offered_total", {})
    scalars, curves = (
        [(name, metrics[name]) for name in names if name in metrics] for names in (SCALARS, SERIES)
    )
    reports = []
    for replica in sample:
        # A replica that is not configured yet reports Ray's own metrics only.
        if not (series := offered.get(replica)):
            continue
        time_s = series[-1].timestamp
        name = replica.unique_id
        report = known_by_replica.get(name)
        if report is None or report.time_s != time_s:
            values = _latest(scalars, replica)
            if report is not None and not report.has_series_of(values):
                report = None
            if report is None:
                values |= _latest(curves, replica)
            try:
                report = ReplicaReport.from_floats(name, time_s, values, report)
            except InvalidInputError as error:
                logger.warning("report ignored: %s", error)
                continue
        reports.append(report)
    return reports


def _latest(columns: Iterable[tuple[str, Mapping[Any, Any]]], replica: Any) -> dict[str, float]:
    """Return the newest value of a replica in each column, by the name of the column."""
    return {name: points[-1].value for name, column in columns if (points := column.get(replica))}


def _newest(metrics: RawMetrics, sample: Iterable[Any], name: str) -> float | None:
    """Return the newest value of a metric of any replica of a sample; None if there is none."""
    by_replica = metrics.get(name, {})
    newest = [points[-1] for replica in sample if (points := by_replica.get(replica))]
    if not newest:
        return None
    value: float = max(newest, key=lambda point: point.timestamp).value
    return value
