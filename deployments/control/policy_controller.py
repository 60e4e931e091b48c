"""Keep a batcher's policy right, for its configuration and for the traffic and device it meets.

The policy comes from a model: the profile, Poisson arrivals, the SLA. Once a second the controller
compares the model with what the replica observed, and adjusts the policy in force.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, replace
from statistics import fmean
from typing import Any, Literal

from autoscaler.reports import power_to_floats
from deployments.config.user_config import UserConfig
from deployments.control.model_corrections import ModelCorrections
from deployments.control.observations import Observations
from deployments.control.policy_solver import (
    PolicySolver,
    SlaCapacity,
    SolveRequest,
    work_conserving_table,
)
from deployments.control.response_times import ResponseTimePercentiles
from policy.batcher.core import BatcherCore
from policy.batcher.requests import PolicySource
from policy.errors import InfeasibleError, InvalidInputError
from policy.power_limit import power_source, service_within
from policy.profile import Profile
from policy.service_model import ServiceModel
from policy.tables.power import POWER_TICKS, check_power_limit
from policy.tables.table import PolicyTable
from policy.try_delays import TryDelays

logger = logging.getLogger("sojourn.policy")

#: Interval at which `PolicyController.tick` is to be called.
TICK_S = 1.0


class PolicyController:
    """Create a batcher's core, and keep its policy right.

    A `PolicySolver` solves the policy table, `ModelCorrections` adjusts the model to
    observations, and `ResponseTimePercentiles` measures and predicts response times. `on_change` is
    called after the core got another policy or other limits, because a batch may now be due.
    `InfeasibleError`: the SLA allows less time than a batch of one takes.
    """

    def __init__(
        self,
        profile: Profile,
        user_config: UserConfig,
        on_change: Callable[[], None],
        *,
        refits_energy: bool = True,
    ) -> None:
        self.user_config = user_config
        service = user_config.service_model(profile)
        self.sla_at_replica = service.sla
        self._on_change = on_change
        self.corrections = ModelCorrections(profile, refits_energy=refits_energy)
        self.profiled_full_batch_ms = float(profile.latency_ms[-1])
        self.percentiles = ResponseTimePercentiles()
        #: Replicas that share the ceiling on the power, and the multiple of the SLA within it.
        self._replicas, self._multiple = 1, 1.0
        #: By tick, the latest; the ceiling is on the mean power.
        self._arrival_rates_per_s: deque[float] = deque(maxlen=POWER_TICKS)
        self.core = BatcherCore(_first_table(service), service.limits)
        self.solver = PolicySolver(user_config.sla, self._use_solved_table)
        self._warn_if_out_of_reach(service)
        self._solve()

    @property
    def profile(self) -> Profile:
        return self.corrections.profile

    @property
    def bottleneck(self) -> Literal["device", "event_loop", "neither"]:
        """The limit of this replica, at its present load and with the batches of the last minutes.

        ``neither`` if the event loop is held up mainly by other processes on its cores; else the
        stage that spends more time per request. One of `autoscaler.reports.BOTTLENECKS`.
        """
        if self.corrections.event_loop.shares_cores:
            return "neither"
        rate_per_s = self.core.arrival_rate.per_s(time.monotonic())
        return self.profile.bottleneck(rate_per_s, self.corrections.event_loop.mean_batch_size)

    @property
    def power_w(self) -> dict[str, float]:
        """The power of the device, ``measured`` and ``predicted``, as far as known."""
        powers_w = {
            "measured": self.corrections.energy.power_w,
            "predicted": self.percentiles.predicted_power_w,
        }
        return {kind: power_w for kind, power_w in powers_w.items() if power_w is not None}

    @property
    def delays(self) -> TryDelays:
        """The delays of a try as measured, and the retries in force."""
        return self.corrections.delays(self.user_config.autoscaler.settings().delays)

    def configure(self, user_config: UserConfig) -> None:
        """Apply a changed configuration: its limits at once, its policy once it is solved.

        `InfeasibleError`: the SLA allows less time than a batch of one takes; the old configuration
        stays.
        """
        service = user_config.service_model(self.profile)
        _first_table(service)
        self.user_config = user_config
        self.sla_at_replica = service.sla
        if user_config.power_limit_w is None:
            self._multiple = 1.0
        self._use(self.core.table)
        self._warn_if_out_of_reach(service)
        self._solve()

    def share_power(self, replicas: int) -> None:
        """Divide the ceiling on the power among so many replicas."""
        if replicas != self._replicas:
            self._replicas = replicas
            self._follow_power()

    def power_limit_stats(self) -> dict[str, float]:
        """Return the ceiling on the power as `ReplicaReport.from_floats` reads it."""
        limit_w, table = self.user_config.power_limit_w, self.solver.power_table
        if limit_w is None or table is None:
            return {}
        return {"power_limit_w": limit_w, **power_to_floats(table)}

    def _power_share_w(self) -> float | None:
        """Return what the ceiling leaves this replica; None without one, or not solved yet."""
        limit_w = self.user_config.power_limit_w
        if limit_w is None or self.solver.power_table is None:
            return None
        return limit_w / self._replicas

    def _follow_power(self) -> None:
        """Allow batching the multiple of the SLA whose power is within the ceiling."""
        share_w, table = self._power_share_w(), self.solver.power_table
        if share_w is None or table is None:
            return
        self.core.wait_factor = 1.0  # shorter waits would take more power
        rate_per_s = fmean(self._arrival_rates_per_s or [0.0])
        multiple = table.multiple_within(rate_per_s, share_w)
        if multiple != self._multiple:
            self._multiple = multiple
            self._use_solved_table()

    @property
    def _sla_multiple(self) -> float:
        """The multiple of the SLA that requests may take: batches may be done sooner."""
        return max(1.0, self._multiple)

    def _explain_power(self) -> dict[str, Any] | None:
        limit_w, share_w = self.user_config.power_limit_w, self._power_share_w()
        if limit_w is None:
            return None
        sla = self.user_config.sla.objective.times(self._sla_multiple)
        return {
            "limit_w": limit_w,
            "replicas": self._replicas,
            "share_w": share_w,
            "sla_multiple": self._sla_multiple,
            "batching_for": "solving" if share_w is None else sla.in_words(),
        }

    def _warn_if_out_of_reach(self, service: ServiceModel) -> None:
        """Report at once if no load is light enough for the SLA; solving the curve takes longer."""
        try:
            service.check_feasible()
        except InfeasibleError as error:
            logger.warning("sla: %s; until then, all requests are answered late", error)
            self.solver.sla_capacity = SlaCapacity(self.user_config.sla, out_of_reach=True)

    def _service_model(self) -> ServiceModel:
        return self.user_config.service_model(self.profile)

    def _solve(self) -> None:
        service, power = self._service_model(), None
        if self.user_config.power_limit_w is not None:
            power = power_source(service)
        sla = self.corrections.after_proxy_delay(service.sla)
        request = SolveRequest(replace(service, sla=sla), power)
        self.solver.solve(request, self.user_config.sla)

    def _use(self, table: PolicySource) -> None:
        self.core.use(table, self._service_model().times(self._sla_multiple).limits)
        self._on_change()

    def _use_solved_table(self) -> None:
        """Apply the solved table, or under a ceiling on the power that of the multiple."""
        table, power_table = self.solver.table, self.solver.power_table
        assert table is not None
        if power_table is not None:
            table = service_within(self._service_model(), power_table, self._multiple).table
        self._use(table)

    async def tick(self, seen: Observations) -> None:
        """Adjust the policy to what was observed; call this every `TICK_S`.

        If batch latency, energy or the event loop's costs deviate from the profile, the profile is
        refitted and the table solved anew. If requests wait longer in HAProxy, the load that keeps
        the SLA is computed anew. If more requests are late than the SLA allows, waits shrink
        whatever the model predicts.
        """
        self.corrections.observe(seen, self.sla_at_replica.late_share_allowed)
        self.core.wait_factor = self.corrections.wait_factor
        self._arrival_rates_per_s.append(self.core.arrival_rate.per_s(time.monotonic()))
        self._follow_power()
        await asyncio.sleep(0)  # requests that came meanwhile have their turn
        capacity_per_s = self.profile.capacity_per_s
        if self.corrections.refit_profile(solving=self.solver.in_progress):
            logger.warning(
                "batch latency, energy or the event loop differ from the profile; refitted"
            )
            self._use(self.core.table)
            self.solver.reduce_capacity(self.profile.capacity_per_s / capacity_per_s)
            await asyncio.sleep(0)
            self._solve()
        elif self.corrections.update_proxy_delay(self.sla_at_replica):
            self._solve()
        await asyncio.sleep(0)
        await self.percentiles.tick(
            seen.response_times_s,
            lambda: self.corrections.newest_profile,
            self.core,
            seen.proxy_delay_ms,
        )

    def explain(self) -> dict[str, Any]:
        """Return what is in force and why: this controller's part of `GET /sojourn/policy`."""
        core, solver, corrections = self.core, self.solver, self.corrections
        now_s = time.monotonic()
        policy, curve, limiting = core.policy(now_s), solver.sla_capacity.curve, self.bottleneck
        return {
            "table": "solving" if solver.in_progress else "failed" if solver.error else "solved",
            "solver": solver.report(),
            "arrival_rate_per_s": core.arrival_rate.per_s(now_s),
            "control_limit": policy.control_limit,
            "actions": policy.actions,
            "max_wait_ms": policy.max_wait_ms,
            "longest_wait_ms": core.longest_wait_ms(policy),
            "wait_factor": core.wait_factor,
            "max_queue_rows": core.limits.max_queue_rows,
            "batch_size_limit": core.limits.max_batch_size,
            "concurrency_limit": core.limits.concurrency,
            "sla_rate_per_s": curve and curve.sla_rate_per_s,
            "bottleneck": limiting,
            "try_delays": asdict(self.delays),
            "event_loop": corrections.event_loop.report(),
            "measured_ms": self.percentiles.measured_ms,
            # The model knows event loop and device, not what else uses their cores.
            "predicted_ms": {} if limiting == "neither" else self.percentiles.predicted_ms,
            "power_w": self.power_w,
            "power_limit": self._explain_power(),
            "profile_revisions": corrections.profile_revisions,
            "profile": corrections.profile.to_dict(),
        }

    async def close(self) -> None:
        """Cancel an unfinished solve."""
        await self.solver.close()


def check_feasible(profile: Profile, user_config: UserConfig, profile_at_start: Profile) -> None:
    """Check that a configuration can be kept on a device.

    Raises
    ------
    InfeasibleError
        The SLA allows less time than a batch of one takes.
    InvalidInputError
        The policy table that it names was solved for another profile than that of the start, or
        the ceiling on the power cannot be held.
    """
    if user_config.power_limit_w is not None:
        check_power_limit(profile, user_config.power_limit_w)
    _first_table(user_config.service_model(profile))
    file = user_config.policy.table
    if file is not None and user_config.service_model(profile_at_start).given is None:
        raise InvalidInputError(
            f"policy: table {file} was solved for another profile than this replica has; name the "
            "profile in the config, and export the table from the same file"
        )


def _first_table(service: ServiceModel) -> PolicyTable:
    return service.given or work_conserving_table(service.profile, service.objective)
