"""The autoscaler: reports in, a number of replicas out. It uses neither Ray nor a clock.

Each decision forecasts the demand until a replica ordered now could serve, and computes the least
replicas that keep the SLA at that demand (`autoscaler.fleet_monitor`). If that is more than there
are, the replicas are ordered at once. If it is fewer, replicas go only if fewer would have been
enough for a while, and if noise will not call for them again (`autoscaler.scale_in`). Without fresh
reports nothing changes.

A decision is a level and not a step: replicas that are still starting are part of it. So the same
demand is never ordered twice, however long starts take and however often they fail.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from autoscaler.decision import Decision, FleetState
from autoscaler.decision_words import (
    bottleneck_remark,
    correction_remark,
    origin_in_words,
    report_remark,
    stuck_remark,
)
from autoscaler.fleet_monitor import FleetMonitor
from autoscaler.fleet_status import FleetStatus, UnknownStatus
from autoscaler.history.learning import FleetSetting, Learned
from autoscaler.reports import ReplicaReport
from autoscaler.scale_in import ScaleInGuard, acquaintance_s, measured_delay_s
from autoscaler.settings import AutoscalerSettings
from autoscaler.sizing.live import LiveSizing
from autoscaler.stuck_orders import StuckOrders
from autoscaler.waking import FirstReplicaWait
from policy.errors import InvalidInputError

_STATE_VERSION = 6


class Autoscaler:
    """Decide how many replicas one deployment needs.

    Parameters
    ----------
    settings : AutoscalerSettings, optional
        In force until replicas report others.
    """

    def __init__(self, settings: AutoscalerSettings | None = None) -> None:
        self._monitor = FleetMonitor(settings or AutoscalerSettings())
        self._guard = ScaleInGuard()
        self._waking = FirstReplicaWait()
        self._stuck = StuckOrders()

    @property
    def settings(self) -> AutoscalerSettings:
        """The settings in force."""
        return self._monitor.settings

    @property
    def risk(self) -> float:
        """The risk that forecasts are asked for: as set, or else as calibrated."""
        return self._monitor.risk

    @property
    def horizon_s(self) -> float:
        """How far forecasts look ahead: the time that a start takes."""
        return self._monitor.start_times.horizon_s

    def assume_start_time(self, start_time_s: float | None) -> None:
        """Size for starts of this length, whatever is observed; None: for those observed."""
        self._monitor.start_times.fix(start_time_s)

    def observe(self, reports: Iterable[ReplicaReport], now_s: float | None = None) -> None:
        """Take in reports, in any order; late and repeated ones are ignored.

        Parameters
        ----------
        reports : iterable of ReplicaReport
        now_s : float or None
            When they were read, on the clock of `decide`, so that replicas with a wrong clock count
            as well. None: all clocks are right.
        """
        self._monitor.observe(reports, now_s)

    def decide(self, now_s: float, fleet: FleetState) -> Decision:
        """Decide how many replicas there should be.

        Parameters
        ----------
        now_s : float
            On the clock of the reports' ``time_s``.
        fleet : FleetState

        Returns
        -------
        Decision
        """
        start_times, ready = self._monitor.start_times, fleet.ready_replicas
        if ready is not None:
            carrying = fleet.carrying_replicas
            start_times.track(now_s, fleet.current_replicas, ready)
            self._monitor.expect(now_s, ready if carrying is None else carrying)
        self._stuck.observe(now_s, fleet)
        decision = self._decide(now_s, fleet)
        if ready is not None:
            start_times.track(now_s, decision.replicas, ready)
        return decision

    def note_limited(self, now_s: float) -> None:
        """Note that fewer replicas were ordered than were decided on, as within a budget."""
        self._monitor.calibration.note_order(now_s, math.nan)

    def fleet_setting(self) -> FleetSetting | None:
        """Return what a replay of the past must know of the fleet; None until it is known."""
        return self._monitor.fleet_setting(self._scale_down_delay_s())

    def watched_s(self, now_s: float) -> float:
        """Return for how long the load has been watched, restarts included, in s."""
        known_s = self._known_s(now_s)
        return known_s if math.isfinite(known_s) else 0.0

    def forecasts_from_s(self, now_s: float) -> float:
        """Return since when the forecasts know the load; a history must end by then."""
        return self._monitor.forecasts_from_s(now_s)

    def learn(self, learned: Learned) -> None:
        """Take over what a history has taught, as if the load had been watched all along.

        Raises
        ------
        InvalidInputError
            It has another form, or ends after `forecasts_from_s`. The autoscaler is then unchanged.
        """
        self._monitor.learn(learned)

    def _decide(self, now_s: float, fleet: FleetState) -> Decision:
        self._waking.observe(now_s, fleet, self._monitor.load)
        if fleet.current_replicas == 0 and fleet.min_replicas == 0 and fleet.waiting <= 0:
            return Decision(
                0, "stay at 0: no request waits", horizon_s=self._monitor.start_times.horizon_s
            )
        current = min(max(fleet.current_replicas, fleet.least), fleet.most)
        status = self._monitor.status(now_s)
        stuck = self._stuck.count(now_s, self._monitor.start_times.horizon_s)
        if isinstance(status, UnknownStatus):
            if status.is_stale:
                self._guard.interrupt()
            rate_per_s = self._waking.rate_per_s(now_s, fleet.waiting)
            replicas, reason = current, f"hold {current}: {status.reason}"
            if rate_per_s is not None:
                replicas, reason = self._wake(rate_per_s, current, fleet)
            reason += stuck_remark(stuck, fleet)
            return self._decision(replicas, reason, stuck_replicas=stuck)
        settings, sizing = self._monitor.settings, self._monitor.sizing(fleet.least, fleet.most)
        requirement = sizing.required(status.demand_per_s)
        required = requirement.replicas
        self._guard.observe(now_s, status.demand_per_s, self._scale_down_delay_s())
        self._guard.first_fleet = self._guard.first_fleet or current
        # Replicas that serve are assumed to carry their share of the load, even before their first
        # report.
        serving = current if fleet.ready_replicas is None else fleet.ready_replicas
        serving = serving if fleet.carrying_replicas is None else fleet.carrying_replicas
        serving_per_known = max(1.0, serving / status.carrying_replicas)
        all_report = serving_per_known == 1 and not status.silent_replicas
        idle_s = self._waking.idle_s(now_s, self._monitor.load)
        if required > current:
            replicas, reason = required, f"scale out {current} -> {required}"
        elif fleet.min_replicas == 0 and all_report and idle_s > self._idle_limit_s():
            replicas, reason = 0, f"scale in {current} -> 0: no request for {idle_s:.0f} s"
        elif required == current:
            replicas, reason = current, f"keep {current}"
        else:
            replicas, reason = self._scale_in(now_s, current, status, sizing, serving_per_known)
        if (rate_per_s := sizing.fleet_rate_per_s()) is not None:
            capacity_per_s = math.nan if requirement.is_limited else replicas * rate_per_s
            self._monitor.calibration.note_order(now_s, capacity_per_s)
        return self._decision(
            replicas,
            f"{reason}; offered {status.offered_per_s:.4g}/s, demand {status.demand_per_s:.4g}/s "
            f"{origin_in_words(status, self._monitor.risk, settings)}, which needs {required}"
            f"{requirement.remark or correction_remark(self._monitor.sla_correction.correction)}"
            f"{bottleneck_remark(status.bottleneck)}{report_remark(status)}"
            f"{stuck_remark(stuck, fleet)}",
            arrival_rate_per_s=status.offered_per_s,
            forecast_per_s=status.forecast.expected_per_s,
            required_replicas=required,
            predicted_service_level=sizing.service_level(
                status.demand_per_s, max(1, replicas - stuck)
            ),
            stuck_replicas=stuck,
            backlog=status.backlog,
            demand_per_s=status.demand_per_s,
            method=status.forecast.method,
            margin=status.forecast.margin,
            risk=self._monitor.risk,
            sla_rate_per_s=sizing.sla_rate_per_s(),
            silent_replicas=status.silent_replicas,
            report_interval_s=status.report_interval_s,
            bottleneck=status.bottleneck,
        )

    def _scale_in(
        self,
        now_s: float,
        current: int,
        status: FleetStatus,
        sizing: LiveSizing,
        serving_per_known: float,
    ) -> tuple[int, str]:
        """Return how many of the `current` replicas to keep if fewer are required now, and why."""
        scale_down_delay_s = self._scale_down_delay_s()
        if status.silent_replicas > status.replicas:
            return current, f"keep {current}: most replicas do not report"
        if self._guard.watched_s(now_s) < scale_down_delay_s:
            return current, f"keep {current}: watched for less than {scale_down_delay_s:g} s"
        cautious_per_s = serving_per_known * self._guard.cautious_demand_per_s(
            status.demand_per_s, status.offered_per_s, self._monitor.settings.window_s
        )
        replicas = min(current, sizing.required(cautious_per_s).replicas)
        if replicas == current:
            return current, (
                f"keep {current}: the cautious demand of the last {scale_down_delay_s:g} s, "
                f"{cautious_per_s:.4g}/s, needs them"
            )
        known_s, needed_s = (
            self._known_s(now_s),
            acquaintance_s(self._monitor.start_times.horizon_s),
        )
        if known_s < needed_s and replicas < self._guard.first_fleet:
            replicas = min(current, self._guard.first_fleet)
            if replicas == current:
                return current, (
                    f"keep {current}: the load has been known for {known_s:.0f} s, less than "
                    f"{needed_s:.0f} s"
                )
        return replicas, (
            f"scale in {current} -> {replicas}: enough for {cautious_per_s:.4g}/s, the cautious "
            f"demand of the last {scale_down_delay_s:g} s"
        )

    def _decision(self, replicas: int, reason: str, **known: Any) -> Decision:
        return Decision(
            replicas,
            reason,
            horizon_s=self._monitor.start_times.horizon_s,
            scale_down_delay_s=self._scale_down_delay_s(),
            correction=self._monitor.sla_correction.correction,
            model_error=self._monitor.sla_correction.error,
            **known,
        )

    def _scale_down_delay_s(self) -> float:
        settings = self._monitor.settings
        if settings.scale_down_delay_s is not None:
            return settings.scale_down_delay_s
        return measured_delay_s(self._monitor.start_times.horizon_s, settings.window_s)

    def _wake(self, rate_per_s: float, current: int, fleet: FleetState) -> tuple[int, str]:
        """Return how many replicas requests need that wait while nothing serves, and why."""
        required = fleet.least
        if self._monitor.median_replicas:
            sizing = self._monitor.sizing(fleet.least, fleet.most)
            required = sizing.required(rate_per_s).replicas
        replicas = max(current, required)
        return replicas, f"order {replicas}: {fleet.waiting:g} requests wait and nothing serves"

    def _known_s(self, now_s: float) -> float:
        return now_s - self._monitor.load.first_s

    def _idle_limit_s(self) -> float:
        # The next request would wait for a start: stopping saves less than that if it comes soon.
        return max(
            self._monitor.settings.scale_to_zero_delay_s, self._monitor.start_times.horizon_s
        )

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """Copy all that was learned, and return a function that packs it for `load_state`.

        The copy takes a fraction of a millisecond. Packing takes longer, and any thread may do it.
        The latest reports are left out, because new ones come every second.
        """
        fleet, scale_in = self._monitor.snapshot(), self._guard.state_dict()
        return lambda: {"version": _STATE_VERSION, "fleet": fleet(), "scale_in": scale_in}

    def state_dict(self) -> dict[str, Any]:
        """Return all that was learned as plain numbers, text, lists and dicts, ready for JSON."""
        return self.snapshot()()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned.

        Raises
        ------
        InvalidInputError
            The state has another version or form. The autoscaler is then unchanged.
        """
        if not isinstance(state, Mapping) or state.get("version") != _STATE_VERSION:
            raise InvalidInputError(f"state: must have version {_STATE_VERSION}")
        try:
            monitor = FleetMonitor.from_state(state["fleet"])
            guard = ScaleInGuard.from_state(state["scale_in"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInputError(f"state: not usable ({error!r})") from error
        self._monitor, self._guard = monitor, guard
