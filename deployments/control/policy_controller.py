"""Keeping a batcher's policy right: for the configuration, and for the world as it is.

The policy comes from a model: the profile, Poisson arrivals, the SLA. Once a second the controller
looks where the world differs from it, and what is in force follows.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoscaler.reports import curve_to_floats
from deployments.batcher.asyncio_batcher import BatchRecord
from deployments.batcher.core import BatcherCore, PolicySource
from deployments.batcher.limits import Limits, limits_for
from deployments.config import SLAConfig, UserConfig
from deployments.control.corrections import LatencyRefit, WaitCorrection
from deployments.control.table_solver import (
    SolveRequest,
    solve_in_subprocess,
    work_conserving_table,
)
from policy.batching_policy import BatchingPolicy
from policy.burstiness import DispersionMeter
from policy.errors import SojournError
from policy.load_lateness import LoadLatenessCurve
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.response_time.evaluation import evaluate
from policy.table import PolicyTable

logger = logging.getLogger("sojourn.policy")

#: How often `PolicyController.tick` is to be called.
TICK_S = 1.0
#: After how many ticks it predicts anew, and looks whether the profile still holds. Twice in a row
#: it must not, before it is refitted: a new table costs a core for a second or more.
PREDICT_EVERY = 5
REVISE_EVERY = 10
#: Change of the index of dispersion below which the table stays.
DISPERSION_STEP = 0.1
PERCENTILES = (50.0, 95.0, 99.0)
#: Closer to the capacity than this a prediction takes long and says little.
PREDICTABLE_INTENSITY = 0.97

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Observations:
    """What came together in a replica since the last tick."""

    batches: list[BatchRecord]
    response_times_s: list[float]
    offered_rows: int


@dataclass(frozen=True)
class SlaCapacity:
    """What the autoscaler is told that this replica takes, and under which SLA.

    The two change together: the curve of one SLA says nothing of another, and until that of a new
    one is solved, in a second or two, the fleet stays sized for the old one.
    """

    sla: SLAConfig
    curve: LoadLatenessCurve | None = None
    out_of_reach: bool = False

    def to_floats(self) -> dict[str, float]:
        """Give it as `autoscaler.reports.ReplicaReport.from_floats` reads it."""
        return {
            "sla_response_time_ms": self.sla.response_time_ms,
            "sla_percentile": self.sla.percentile,
            **curve_to_floats(self.curve, out_of_reach=self.out_of_reach),
        }


class PolicyController:
    """Makes a batcher's core, and keeps its policy right.

    Parameters
    ----------
    profile : Profile
        What the model costs here, as believed at first.
    user_config : UserConfig
        What is asked for.
    on_change : callable
        Called after the core got another policy or other limits, so that it may start a batch.

    Raises
    ------
    InfeasibleError
        The SLA asks for less time than a batch of one takes.
    """

    def __init__(
        self, profile: Profile, user_config: UserConfig, on_change: Callable[[], None]
    ) -> None:
        self.profile = profile
        self.profile_revisions = 0
        self._take(user_config)
        self.error: str | None = None
        self.sla_capacity = SlaCapacity(user_config.sla)
        objective = user_config.objective(profile)
        self.core = BatcherCore(work_conserving_table(profile, objective), self._limits())
        self._on_change = on_change
        self._solved: PolicyTable | None = None
        self._solving: asyncio.Task[None] | None = None
        self._learner = LatencyRefit(profile)
        self._correction = WaitCorrection()
        self._dispersion = DispersionMeter()
        self._index_of_dispersion = 1.0
        self._ticks = 0
        self._measured_ms: dict[str, float] = {}
        self._predicted_ms: dict[str, float] = {}
        self._solve()

    def configure(self, user_config: UserConfig) -> None:
        """Take a changed configuration: limits at once, the policy as soon as it is solved.

        Raises
        ------
        InfeasibleError
            The SLA asks for less time than a batch of one takes; what was in force stays in force.
        """
        work_conserving_table(self.profile, user_config.objective(self.profile))
        before = self._solve_request()
        self._take(user_config)
        failed, self.error = self.error is not None, None
        self._use(self.core.table)
        if failed or not self._solve_request().same_as(before):
            self._solve()

    def _take(self, user_config: UserConfig) -> None:
        self.user_config = user_config
        #: What the way to the replica and back leaves of the SLA: what is late here.
        self.sla_at_replica = user_config.sla.objective.after(
            user_config.autoscaler.settings().delays.way_ms
        )

    def _limits(self) -> Limits:
        user_config = self.user_config
        return limits_for(
            self.profile, user_config.sla.objective, waiting_room=user_config.limits.waiting_room
        )

    def _use(self, table: PolicySource) -> None:
        self.core.use(table, self._limits())
        self._on_change()

    def _solve_request(self) -> SolveRequest:
        user_config = self.user_config
        return SolveRequest(
            self.profile,
            user_config.objective(self.profile),
            self.sla_at_replica,
            self._limits().waiting_room,
        )

    def _solve(self) -> None:
        """Have table and curve solved aside; what is asked for no more is dropped."""
        if self._solving is not None:
            self._solving.cancel()
        self._solving = asyncio.create_task(
            self._solve_and_use(self._solve_request(), self.user_config.sla)
        )

    async def _solve_and_use(self, request: SolveRequest, sla: SLAConfig) -> None:
        try:
            result = await solve_in_subprocess(request)
        except (SojournError, OSError, ValueError) as error:
            self.error = str(error)
            self.sla_capacity = SlaCapacity(sla)
            logger.error("the policy in force stays: %s", error)
            return
        self._solved = result.table
        self.sla_capacity = SlaCapacity(sla, result.curve, out_of_reach=result.curve is None)
        self._use_for_bursts()

    def _use_for_bursts(self) -> None:
        """Put the solved table in force, its waits cut to what bursts allow under an SLA."""
        assert self._solved is not None
        objective = self.user_config.objective(self.profile)
        table = self._solved
        if isinstance(objective, ServiceLevelObjective):
            table = table.for_bursts(self._index_of_dispersion, TICK_S)
        self._use(table)

    async def tick(self, seen: Observations) -> None:
        """Follow the world; to be called every `TICK_S` with what came together since.

        The profile is refitted to the batches that were run, and the table solved for it; the
        table's waits are cut to what bursts allow, and cut further while more requests are late
        than the SLA allows, whatever the model says.
        """
        self._correct_waits(np.array(seen.response_times_s))
        self._dispersion.observe(seen.offered_rows)
        for record in seen.batches:
            if not record.failed:
                self._learner.observe(record.size, 1e3 * record.duration_s)
        self._ticks += 1
        profile = self._learner.revise() if self._ticks % REVISE_EVERY == 0 else None
        index = self._dispersion.index
        if profile is not None:
            self.profile = profile
            self.profile_revisions += 1
            self._use(self.core.table)
            self._solve()
            logger.warning("batches take other than the profile says: it is refitted")
        elif self._solved and abs(index - self._index_of_dispersion) > DISPERSION_STEP:
            self._index_of_dispersion = index
            self._use_for_bursts()
        if self._ticks % PREDICT_EVERY == 0:
            await self._predict()

    def _correct_waits(self, response_times_s: FloatArray) -> None:
        sla = self.sla_at_replica
        late = sum(map(sla.is_late, (1e3 * response_times_s).tolist()))
        self.core.wait_factor = self._correction.revise(
            response_times_s.size, late, sla.late_share_allowed
        )
        if response_times_s.size:
            quantiles_ms = 1e3 * np.percentile(response_times_s, PERCENTILES)
            self._measured_ms = {
                f"{p:g}": float(ms) for p, ms in zip(PERCENTILES, quantiles_ms, strict=True)
            }

    async def _predict(self) -> None:
        """Predict the response times at the rate seen, beside the requests."""
        now_s = time.monotonic()
        core = self.core
        rate_per_s, policy = core.arrival_rate.per_s(now_s), core.policy(now_s)
        if core.longest_wait_ms(policy) < (policy.max_wait_ms or math.inf):
            policy = replace(policy, max_wait_ms=core.longest_wait_ms(policy))
        self._predicted_ms = {}
        # Any other table takes up to a second, in which the requests would have to share the
        # interpreter; a control limit takes milliseconds.
        limit = BatchingPolicy.from_control_limit(policy.control_limit, policy.max_batch_size)
        if policy.actions != limit.actions:
            return
        if 0 < rate_per_s < PREDICTABLE_INTENSITY * self.profile.capacity_per_s:
            try:
                predicted = await asyncio.to_thread(evaluate, self.profile, policy, rate_per_s)
                self._predicted_ms = {
                    f"{p:g}": predicted.response_percentile_ms(p) for p in PERCENTILES
                }
            except SojournError as error:
                logger.info("no prediction: %s", error)

    def explain(self) -> Mapping[str, Any]:
        """Give what is in force, and why."""
        now_s = time.monotonic()
        core, policy = self.core, self.core.policy(now_s)
        solving = self._solved is None or (self._solving is not None and not self._solving.done())
        return {
            "table": "solving" if solving and self.error is None else "solved",
            "arrival_rate_per_s": core.arrival_rate.per_s(now_s),
            "index_of_dispersion": self._dispersion.index,
            "control_limit": policy.control_limit,
            "actions": policy.actions,
            "max_wait_ms": policy.max_wait_ms,
            "longest_wait_ms": core.longest_wait_ms(policy),
            "wait_factor": core.wait_factor,
            "waiting_room": core.limits.waiting_room,
            "sla_rate_per_s": self.sla_capacity.curve and self.sla_capacity.curve.sla_rate_per_s,
            "measured_ms": self._measured_ms,
            "predicted_ms": self._predicted_ms,
            "profile_revisions": self.profile_revisions,
            "profile": self.profile.to_dict(),
        }

    async def close(self) -> None:
        """End what is being solved."""
        if self._solving is not None:
            self._solving.cancel()
            await asyncio.gather(self._solving, return_exceptions=True)
