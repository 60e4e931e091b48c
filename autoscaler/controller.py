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
from dataclasses import dataclass, replace
from typing import Any

from autoscaler.decision import Decision
from autoscaler.fleet_monitor import SLOW_INTERVAL_S, FleetMonitor, FleetStatus, UnknownStatus
from autoscaler.reports import ReplicaReport
from autoscaler.scale_in import ScaleInGuard, acquaintance_s, measured_hold_s
from autoscaler.settings import AutoscalerSettings
from autoscaler.shared_cores import HELD_IN_WORDS
from autoscaler.sizing.live import LiveSizing
from autoscaler.sizing.sla_rate_correction import MIN_CORRECTION
from policy.errors import InvalidInputError

_STATE_VERSION = 6


#: Ordered replicas that have not started after this many starts' time, and this long, are stuck.
_STUCK_AFTER_STARTS, _STUCK_AFTER_S = 2.0, 30.0


@dataclass(frozen=True)
class _Shortage:
    """Since when fewer replicas have served than were ordered, and how many of either."""

    since_s: float
    ready: int
    ordered: int


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
        #: Since when requests have been waiting without a break; None if none waits.
        self._waiting_since_s: float | None = None
        #: When a request last waited for a first replica, or such a replica was starting.
        self._last_waiting_s = -math.inf
        self._shortage: _Shortage | None = None

    @property
    def settings(self) -> AutoscalerSettings:
        """The settings in force."""
        return self._monitor.settings

    @property
    def risk(self) -> float:
        """The risk that forecasts are asked for: as set, or else as calibrated."""
        return self._monitor.risk

    def assume_start_time(self, start_time_s: float) -> None:
        """Size for starts of this length, whatever is observed (`autoscaler.standbys`)."""
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

    def decide(
        self,
        now_s: float,
        *,
        current_replicas: int,
        min_replicas: int,
        max_replicas: int,
        ready_replicas: int | None = None,
        waiting: float = 0.0,
    ) -> Decision:
        """Decide how many replicas there should be.

        Parameters
        ----------
        now_s : float
            On the clock of the reports' ``time_s``.
        current_replicas : int
            Replicas ordered so far, started or not: the last decision, unless somebody changed it.
        min_replicas, max_replicas : int
            Bounds. If `min_replicas` is 0, the last replica goes after no request has come for
            `AutoscalerSettings.idle_s`.
        ready_replicas : int, optional
            Replicas that serve, whether they report or not. None: unknown.
        waiting : float
            Requests that wait outside for a first replica.

        Returns
        -------
        Decision

        Raises
        ------
        InvalidInputError
            The bounds contradict each other.
        """
        if not 0 <= min_replicas <= max_replicas:
            raise InvalidInputError(
                f"bounds: min_replicas must be at least 0 and at most max_replicas, not "
                f"{min_replicas} to {max_replicas}"
            )
        start_times = self._monitor.start_times
        if ready_replicas is not None:
            start_times.track(now_s, current_replicas, ready_replicas)
            self._monitor.expect(now_s, ready_replicas)
            self._note_shortage(now_s, current_replicas, ready_replicas)
        decision = self._decide(
            now_s, current_replicas, min_replicas, max_replicas, ready_replicas, waiting
        )
        if ready_replicas is not None:
            start_times.track(now_s, decision.replicas, ready_replicas)
        return decision

    def _decide(
        self,
        now_s: float,
        current_replicas: int,
        min_replicas: int,
        max_replicas: int,
        ready_replicas: int | None,
        waiting: float,
    ) -> Decision:
        low, high = max(1, min_replicas), max(1, max_replicas)
        self._note_waiting(now_s, waiting)
        if ready_replicas == 0:
            # The waking request may still be queued at the proxy, which sends no reports.
            self._last_waiting_s = now_s
        if current_replicas == 0 and min_replicas == 0 and waiting <= 0:
            return Decision(
                0, "stay at 0: no request waits", horizon_s=self._monitor.start_times.horizon_s
            )
        current = min(max(current_replicas, low), high)
        status = self._monitor.status(now_s)
        if isinstance(status, UnknownStatus):
            if status.is_stale:
                self._guard.interrupt()
            if self._waiting_since_s is not None:
                return self._wake(now_s - self._waiting_since_s, current, waiting, low, high)
            return self._decision(current, f"hold {current}: {status.reason}")
        sizing = self._monitor.sizing(low, high)
        required, remark = sizing.required(status.demand_per_s)
        remark = (remark or self._model_remark()) + _bottleneck_remark(status.bottleneck)
        remark += _report_remark(status)
        stuck = self._stuck_replicas(now_s)
        if stuck:
            remark += (
                f"; only {ready_replicas} of {current_replicas} serve: {stuck} do not start "
                "(is there room for them on the cluster?)"
            )
        self._guard.observe(now_s, status.demand_per_s, self._hold_s())
        self._guard.first_fleet = self._guard.first_fleet or current
        # Replicas that serve are assumed to carry their share of the load, even before their first
        # report.
        serving = current if ready_replicas is None else ready_replicas
        serving_per_known = max(1.0, serving / status.carrying_replicas)
        all_report = serving_per_known == 1 and not status.silent_replicas
        idle_s = self._idle_s(now_s)

        shared_cores = self._monitor.shared_cores
        on_shared_cores = status.bottleneck == "neither"
        shared_cores.observe(
            now_s,
            on_shared_cores=on_shared_cores,
            offered_per_s=status.offered_per_s,
            ready_replicas=serving,
        )
        held = required > current and shared_cores.holds(now_s)
        if held:
            replicas, reason = current, f"keep {current}: {HELD_IN_WORDS}"
        elif required > current:
            replicas, reason = required, f"scale out {current} -> {required}"
            if on_shared_cores:
                shared_cores.note_order(replicas)
        elif min_replicas == 0 and all_report and idle_s > self._idle_limit_s():
            replicas, reason = 0, f"scale in {current} -> 0: no request for {idle_s:.0f} s"
        elif required == current:
            replicas, reason = current, f"keep {current}"
        else:
            replicas, reason = self._scale_in(now_s, current, status, sizing, serving_per_known)
        if (sla_rate_per_s := sizing.sla_rate_per_s()) is not None and not held:
            self._monitor.calibration.note_order(now_s, replicas * sla_rate_per_s)
        return self._decision(
            replicas,
            f"{reason}; offered {status.offered_per_s:.4g}/s, demand {status.demand_per_s:.4g}/s "
            f"by {status.forecast.method} at a risk of {self._risk_in_words()}, which needs "
            f"{required}{remark}",
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
            sla_rate_per_s=sla_rate_per_s,
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
        hold_s = self._hold_s()
        if status.silent_replicas > status.replicas:
            return current, f"keep {current}: most replicas do not report"
        if self._guard.watched_s(now_s) < hold_s:
            return current, f"keep {current}: watched for less than {hold_s:g} s"
        cautious_per_s = serving_per_known * self._guard.cautious_demand_per_s(
            status.demand_per_s, status.offered_per_s, self._monitor.settings.window_s
        )
        replicas = min(current, sizing.required(cautious_per_s)[0])
        if replicas == current:
            return current, (
                f"keep {current}: the cautious demand of the last {hold_s:g} s, "
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
            f"demand of the last {hold_s:g} s"
        )

    def _decision(self, replicas: int, reason: str, **known: Any) -> Decision:
        return Decision(
            replicas,
            reason,
            horizon_s=self._monitor.start_times.horizon_s,
            hold_s=self._hold_s(),
            correction=self._monitor.sla_correction.correction,
            model_error=self._monitor.sla_correction.error,
            **known,
        )

    def _model_remark(self) -> str:
        correction = self._monitor.sla_correction.correction
        if correction > MIN_CORRECTION:
            return ""
        return (
            "; devices are slower than their profile, and the correction is at its minimum of "
            f"{correction:g}"
        )

    def _risk_in_words(self) -> str:
        monitor = self._monitor
        if monitor.settings.risk is not None:
            return f"{monitor.risk:.2g}"
        share = f"{monitor.settings.windows:.4g} of the windows comply"
        return f"{monitor.risk:.2g} (adapted so that {share})"

    def _hold_s(self) -> float:
        settings = self._monitor.settings
        if settings.hold_s is not None:
            return settings.hold_s
        return measured_hold_s(self._monitor.start_times.horizon_s, settings.window_s)

    def _note_shortage(self, now_s: float, ordered: int, ready: int) -> None:
        """Note since when replicas have been missing without another one starting to serve."""
        if ready >= ordered:
            self._shortage = None
        elif self._shortage is None or ready > self._shortage.ready:
            self._shortage = _Shortage(now_s, ready, ordered)
        else:
            self._shortage = replace(self._shortage, ready=ready, ordered=ordered)

    def _stuck_replicas(self, now_s: float) -> int:
        """Return how many ordered replicas have not started for much longer than starts take."""
        shortage = self._shortage
        if shortage is None:
            return 0
        patience_s = _STUCK_AFTER_STARTS * self._monitor.start_times.horizon_s + _STUCK_AFTER_S
        if now_s < shortage.since_s + patience_s:
            return 0
        return shortage.ordered - shortage.ready

    def _note_waiting(self, now_s: float, waiting: float) -> None:
        if waiting <= 0:
            self._waiting_since_s = None
            return
        self._last_waiting_s = now_s
        if self._waiting_since_s is None:
            self._waiting_since_s = now_s
        self._monitor.load.note_waiting(self._waiting_since_s, now_s)

    def _wake(self, waited_s: float, current: int, waiting: float, low: int, high: int) -> Decision:
        """Order replicas for requests that wait while nothing serves.

        The rate at which requests arrived decides, and not their number: until a replica starts,
        their number keeps growing although the load does not.
        """
        rate_per_s = waiting / max(1.0, waited_s)
        required = low
        if self._monitor.median_replicas:
            required = self._monitor.sizing(low, high).required(rate_per_s)[0]
        replicas = max(current, required)
        return self._decision(
            replicas, f"order {replicas}: {waiting:g} requests wait and nothing serves"
        )

    def _known_s(self, now_s: float) -> float:
        return now_s - self._monitor.load.first_s

    def _idle_s(self, now_s: float) -> float:
        load = self._monitor.load
        return now_s - max(load.last_request_s, load.first_s, self._last_waiting_s)

    def _idle_limit_s(self) -> float:
        # The next request would wait for a start: stopping saves less than that if it comes soon.
        return max(self._monitor.settings.idle_s, self._monitor.start_times.horizon_s)

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


def _bottleneck_remark(bottleneck: str | None) -> str:
    if bottleneck is None:
        return ""
    if bottleneck == "neither":
        return (
            "; bottleneck: neither front nor device, other processes use the replicas' cores "
            "(another replica on the same cores does not help)"
        )
    return f"; bottleneck: {bottleneck}"


def _report_remark(status: FleetStatus) -> str:
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
