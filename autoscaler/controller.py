"""The autoscaler: reports in, a number of replicas out. It uses neither Ray nor a clock.

`Autoscaler.decide` is a chain of steps: update (what the reports show) → demand (forecast until a
replica ordered now could serve) → size (the least replicas that keep the SLA at that demand) → hold
(scale up at once, down only after fewer have been enough for a while) → reason. Without fresh
reports nothing changes.

A decision is a level and not a step: replicas that are still starting are part of it. So the same
demand is never ordered twice, however long starts take and however often they fail.

With standbys the chain runs twice: for the replicas, which need only cover the demand until a
standby could serve, and for replicas and standbys together, which cover it until a new replica
could (`autoscaler.standbys`).
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from autoscaler.decision import Decision, FleetState
from autoscaler.forecasting.demand import DemandForecaster
from autoscaler.forecasting.load_history import LoadHistory
from autoscaler.observe.fleet_monitor import FleetMonitor, FleetStatus, UnknownStatus
from autoscaler.observe.pending_replicas import PendingReplicas, ScaleFromZero
from autoscaler.remarks import (
    bottleneck_remark,
    correction_remark,
    pending_remark,
    report_remark,
)
from autoscaler.reports import ReplicaReport
from autoscaler.scale_down import default_scale_down_delay_s
from autoscaler.settings import AUTO, AutoscalerSettings
from autoscaler.sizing.fleet_sizing import Fleet, FleetSizing
from autoscaler.standbys import PROMOTION_S, TwoTierStarts, standby_risk
from autoscaler.tier import Horizon, Tier
from policy.errors import InvalidInputError

_STATE_VERSION = 8


class Autoscaler:
    """Decide how many replicas and standbys one deployment needs.

    The settings are in force until replicas report others. With `starts`, standbys are kept if they
    pay, whatever the settings say; without, starts take as long as observed.
    """

    def __init__(
        self, settings: AutoscalerSettings | None = None, starts: TwoTierStarts | None = None
    ) -> None:
        self.may_have_standbys = True
        self._starts = starts
        self._monitor = FleetMonitor(settings or AutoscalerSettings())
        self._scale_from_zero = ScaleFromZero()
        self._pending = PendingReplicas()
        self._replicas = Tier(self._monitor.history)
        #: For replicas and standbys together; None without standbys.
        self._total: Tier | None = None

    @property
    def settings(self) -> AutoscalerSettings:
        return self._monitor.settings

    def size_by(self, fleet: Fleet) -> None:
        """Size by a model of the fleet other than RAND, for replicas that share one queue."""
        self._monitor.fleet = fleet

    @property
    def risk(self) -> float:
        """The risk that forecasts are asked for: as set, or else as calibrated."""
        return self._risk_of(self._replicas)

    @property
    def horizon_s(self) -> float:
        """How far the forecast for replicas looks ahead: the time until one of them serves."""
        return self._tiers.standby_s if self._total is not None else self._start_time_s

    def observe(self, reports: Iterable[ReplicaReport], now_s: float, weight: float = 1.0) -> None:
        """Record reports, in any order; late and repeated ones are ignored.

        They were read at `now_s`, on the clock of `decide`, whatever their own clocks show. If they
        are a sample, each stands for `weight` replicas.
        """
        self._monitor.observe(reports, now_s, weight)

    def decide(self, now_s: float, fleet: FleetState) -> Decision:
        """Decide how many replicas and standbys there should be, on the clock of the reports."""
        self._update(now_s, fleet)
        decision = self._decide(now_s, fleet)
        ordered = decision.replicas + decision.standbys
        self._monitor.start_times.track(now_s, ordered, fleet.total_ready)
        return decision

    def _update(self, now_s: float, fleet: FleetState) -> None:
        self._monitor.start_times.track(now_s, fleet.total_ordered, fleet.total_ready)
        self._pending.observe(now_s, fleet.total_ordered, fleet.total_ready)
        self._monitor.update(now_s, fleet.ready_replicas)
        self._scale_from_zero.observe(now_s, fleet, self._monitor.load)
        if not self._standbys_wanted:
            self._total = None
        elif self._total is None:
            # It begins with all that is known of the load.
            state = self._replicas.state_dict()
            self._total = Tier.from_state(self._monitor.history, state)

    def _decide(self, now_s: float, fleet: FleetState) -> Decision:
        if fleet.current_replicas == 0 and fleet.min_replicas == 0 and fleet.waiting <= 0:
            return Decision(0, "stay at 0: no request waits", horizon_s=self.horizon_s)
        status = self._monitor.status(now_s)
        if isinstance(status, UnknownStatus):
            return self._decide_without_status(now_s, fleet, status)
        horizon = self._horizon(self.horizon_s, self.risk)
        decision = self._scale(
            self._replicas, now_s, fleet, fleet.current_replicas, status, horizon
        )
        if self._is_idle(now_s, fleet, status) and decision.replicas <= fleet.current_replicas:
            idle_s = self._scale_from_zero.idle_s(now_s, self._monitor.load)
            reason = f"scale in {fleet.current_replicas} -> 0: no request for {idle_s:.0f} s"
            return replace(decision, replicas=0, reason=reason)
        if self._total is None:
            return decision
        risk = self._risk_of(self._total)
        if self._standbys_wanted == AUTO:
            risk = standby_risk(self.risk)
        horizon = self._horizon(self._start_time_s, risk)
        total = self._scale(self._total, now_s, fleet, fleet.total_ordered, status, horizon)
        return self._with_standbys(now_s, decision, total, fleet.most)

    def _is_idle(self, now_s: float, fleet: FleetState, status: FleetStatus) -> bool:
        """Return whether the last replica may go, because no request has come for long."""
        if fleet.min_replicas or status.silent_replicas or status.serving_per_known > 1:
            return False
        # The next request would wait for a start: stopping saves less than that if it comes soon.
        delay_s = max(self.settings.scale_to_zero_delay_s, self._start_time_s)
        return self._scale_from_zero.idle_s(now_s, self._monitor.load) > delay_s

    def _decide_without_status(
        self, now_s: float, fleet: FleetState, status: UnknownStatus
    ) -> Decision:
        """Keep what there is; order replicas for requests that wait while nothing serves."""
        current = _bounded(fleet.current_replicas, fleet)
        replicas, reason = current, f"hold {current}: {status.reason}"
        rate_per_s = self._scale_from_zero.rate_per_s(now_s, fleet.waiting)
        if rate_per_s is not None:
            required = fleet.least
            if self._monitor.knows_replicas:
                required = self._sizing(fleet).required(rate_per_s).replicas
            replicas = max(current, required)
            reason = f"order {replicas}: {fleet.waiting:g} requests wait and nothing serves"
        pending = self._pending.late(now_s, self._start_time_s)
        return self._decision(replicas, reason + pending_remark(pending, fleet), pending)

    def _scale(
        self,
        tier: Tier,
        now_s: float,
        fleet: FleetState,
        current: int,
        status: FleetStatus,
        horizon: Horizon,
    ) -> Decision:
        """Return the decision for one horizon: bounds → demand → size → hold → reason."""
        current, sizing = _bounded(current, fleet), self._sizing(fleet)
        late_share_allowed = self._monitor.late_share_allowed
        demand = tier.demand(
            now_s,
            status,
            self.settings,
            late_share_allowed,
            horizon,
            sizing.sla_rate_per_s() or 0.0,
        )
        requirement = sizing.required(demand.per_s)
        replicas, reason = tier.hold(
            now_s,
            current,
            demand,
            sizing,
            requirement.replicas,
            status,
            horizon,
            self._start_time_s,
        )
        if (capacity_per_s := sizing.fleet_rate_per_s(replicas)) is not None:
            tier.calibration.note_order(
                now_s, math.nan if requirement.is_limited else capacity_per_s
            )
        pending = self._pending.late(now_s, self._start_time_s)
        single = sizing.needed_without_retries(demand.per_s)
        remarks = (
            "" if single in (None, requirement.replicas) else f" ({single} without retries)",
            requirement.remark or correction_remark(self._monitor.sla_correction.correction),
            bottleneck_remark(status.bottleneck),
            report_remark(status),
            pending_remark(pending, fleet),
        )
        return self._decision(
            replicas,
            f"{reason}; offered {status.offered_per_s:.4g}/s, demand {demand.per_s:.4g}/s "
            f"{demand.origin}, which needs {requirement.replicas}{''.join(remarks)}",
            pending,
            arrival_rate_per_s=status.offered_per_s,
            forecast_per_s=demand.forecast.expected_per_s,
            required_replicas=requirement.replicas,
            required_without_retries=single,
            predicted_service_level=sizing.service_level(demand.per_s, max(1, replicas - pending)),
            backlog=status.backlog,
            demand_per_s=demand.per_s,
            method=demand.forecast.method,
            margin=demand.forecast.margin,
            risk=horizon.risk,
            sla_rate_per_s=sizing.sla_rate_per_s(),
            silent_replicas=status.silent_replicas,
            report_interval_s=status.report_interval_s,
            bottleneck=status.bottleneck,
            try_delays=vars(sizing.delays),
        )

    def _with_standbys(
        self, now_s: float, decision: Decision, total: Decision, most: int
    ) -> Decision:
        """Divide what is required in total into replicas and standbys."""
        replicas, wanted, remark = decision.replicas, self._standbys_wanted, ""
        if isinstance(wanted, int):
            replicas = max(replicas, total.replicas - wanted)
            standbys = min(wanted, most - replicas)
            if standbys < wanted:
                remark = f" (max_replicas leaves no room for {wanted})"
            if replicas > decision.replicas:
                # What they can take is more than the forecast of the replicas asked for.
                self.note_limited(now_s)
        else:
            standbys = max(0, total.replicas - replicas)
        return replace(
            decision,
            replicas=replicas,
            standbys=standbys,
            reason=f"{replicas} serving, {standbys} on standby{remark}; replicas: "
            f"{decision.reason}; with standbys: {total.reason}",
        )

    def _decision(self, replicas: int, reason: str, pending: int, **known: Any) -> Decision:
        return Decision(
            replicas,
            reason,
            horizon_s=self.horizon_s,
            start_times_s=self._monitor.start_times.by_tier_s(),
            stuck_replicas=pending,
            scale_down_delay_s=self._scale_down_delay_s(self.horizon_s),
            correction=self._monitor.sla_correction.correction,
            model_error=self._monitor.sla_correction.error,
            **known,
        )

    def _sizing(self, fleet: FleetState) -> FleetSizing:
        return self._monitor.sizing(fleet.least, fleet.most)

    def _risk_of(self, tier: Tier) -> float:
        return tier.calibration.risk if self.settings.risk is None else self.settings.risk

    @property
    def _tiers(self) -> TwoTierStarts:
        """How long starts take from a standby, and without one."""
        if self._starts is not None:
            return self._starts
        cold_s = self._monitor.start_times.horizon_s
        return TwoTierStarts(min(PROMOTION_S, cold_s), cold_s)

    @property
    def _start_time_s(self) -> float:
        """The time until a replica ordered now serves, if no standby takes its place."""
        return self._tiers.cold_s

    @property
    def _standbys_wanted(self) -> int | str:
        """The number of standbys to keep, or `AUTO`; 0 where none pays."""
        wanted = self.settings.standbys if self._starts is None else AUTO
        none_pays = wanted == AUTO and self._tiers.standby_s >= self._tiers.cold_s
        return 0 if none_pays or not self.may_have_standbys else wanted

    def _horizon(self, seconds: float, risk: float) -> Horizon:
        return Horizon(seconds, risk, self._scale_down_delay_s(seconds))

    def _scale_down_delay_s(self, horizon_s: float) -> float:
        if self.settings.scale_down_delay_s is not None:
            return self.settings.scale_down_delay_s
        return default_scale_down_delay_s(horizon_s, self.settings.window_s)

    def note_limited(self, now_s: float) -> None:
        """Record that fewer replicas were ordered than decided, as within a budget."""
        self._replicas.calibration.note_order(now_s, math.nan)

    def watched_s(self, now_s: float) -> float:
        """Return for how long the load has been watched, restarts included, in s."""
        return max(0.0, now_s - self._monitor.known_since_s)

    def learn(self, load: Mapping[str, Any]) -> None:
        """Adopt the load of past days, and continue with the load seen since.

        A load that is no state of a `LoadHistory` is an `InvalidInputError`, and changes nothing.
        """
        seen = self._monitor.history
        history = LoadHistory(seen.unserved_share)
        try:
            history.load_state(load)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInputError(f"history: not usable ({error!r})") from error
        if seen.end_s is not None:
            history.observe(seen.end_s, seen.known_rates())
        self._monitor.history = history
        self._replicas.forecaster = DemandForecaster(history)
        self._total = None  # it begins anew, with what was learned

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """Copy all that was learned, and return a function that packs it for `load_state`.

        It becomes plain numbers, text, lists and dicts, ready for JSON. The copy takes a fraction
        of a millisecond. Packing takes longer, and any thread may do it.
        """
        monitor, replicas = self._monitor.snapshot(), self._replicas.state_dict()
        total = None if self._total is None else self._total.state_dict()
        return lambda: {
            "version": _STATE_VERSION,
            "monitor": monitor(),
            "replicas": replicas,
            "total": total,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what was packed, or raise `InvalidInputError` and change nothing."""
        if not isinstance(state, Mapping) or state.get("version") != _STATE_VERSION:
            raise InvalidInputError(f"state: must have version {_STATE_VERSION}")
        try:
            monitor = FleetMonitor.from_state(state["monitor"])
            monitor.fleet = self._monitor.fleet
            replicas = Tier.from_state(monitor.history, state["replicas"])
            total = state["total"] and Tier.from_state(monitor.history, state["total"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInputError(f"state: not usable ({error!r})") from error
        self._monitor, self._replicas, self._total = monitor, replicas, total


def _bounded(replicas: int, fleet: FleetState) -> int:
    return min(max(replicas, fleet.least), fleet.most)
