"""The autoscaler: reports in, a number of replicas out; no Ray and no clock.

Each decision takes the load that clients offer, forecasts the demand until a replica ordered now
has started, and gives the least replicas that keep the SLA under it by the replicas' own
response-time model, corrected by what was measured. More are ordered at once. Fewer are kept only
if they would have been enough for a while, and if noise will not call for the others again
(`autoscaler.scale_in`). Without fresh reports nothing changes.

The order is a level, never a step: replicas that start are part of it, so the same need is not
ordered twice, however long they take and however often they fail.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from autoscaler.decision import Decision
from autoscaler.forecasting.demand import LATE_SHARE, DemandForecast, DemandForecaster
from autoscaler.offered_load import MAX_LAG_S, OfferedLoad
from autoscaler.reports import AutoscalerSettings, ReplicaReport
from autoscaler.scale_in import ScaleInGuard, measured_hold_s
from autoscaler.sizing.live import LiveSizing, MedianReplica, median_replicas
from autoscaler.sizing.sla_rate_correction import LEAST as LEAST_CORRECTION
from autoscaler.sizing.sla_rate_correction import SlaRateCorrection
from autoscaler.start_times import StartTimes
from policy.errors import InvalidInputError

__all__ = ["Autoscaler", "AutoscalerSettings", "Decision", "ReplicaReport"]

#: Reports older than this say nothing of now.
STALE_AFTER_S = 10.0
#: Full batches per replica that may wait without being a backlog.
_ORDINARY_BATCHES = 2
_FORGET_AFTER_S = 3600.0
_STATE_VERSION = 2


class Autoscaler:
    """Decides how many replicas one deployment needs.

    Parameters
    ----------
    settings : AutoscalerSettings, optional
        In force until replicas report others.
    """

    def __init__(self, settings: AutoscalerSettings | None = None) -> None:
        self._settings = settings or AutoscalerSettings()
        self._load = OfferedLoad()
        self._reports: dict[str, ReplicaReport] = {}
        self._start_times = StartTimes()
        self._model_error = SlaRateCorrection()
        self._guard = ScaleInGuard()
        self._forecaster = DemandForecaster(self._settings.forecast)
        self._forecasts_for = (self._settings.forecast, LATE_SHARE)
        self._median_replicas: tuple[MedianReplica, ...] = ()
        self._waiting_since_s: float | None = None
        self._waited_s = -math.inf

    @property
    def settings(self) -> AutoscalerSettings:
        """The settings in force."""
        return self._settings

    def observe(self, reports: Iterable[ReplicaReport]) -> None:
        """Take in what replicas reported: late, repeated and out of order as it may be."""
        for report in reports:
            newest_s = self._load.newest_s
            if not self._load.observe(report):
                continue
            before = self._reports.get(report.replica_id)
            self._reports[report.replica_id] = report
            if before is not None and report.answered_total and report.sla_rate_per_s:
                self._model_error.count_between(before, report)
            if report.settings is not None and report.time_s >= newest_s:
                self._settings = report.settings
            if report.start_time_s > 0:
                self._start_times.observe(report.replica_id, report.start_time_s)

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
            Replicas ordered so far, whether they have started or not: what was decided last, unless
            somebody else changed it.
        min_replicas, max_replicas : int
            Bounds. With a least of 0 the last replica goes when there has been no request for
            `AutoscalerSettings.idle_s`.
        ready_replicas : int, optional
            Those of them that serve, whether they report or not. None: not known.
        waiting : float
            Requests that wait outside for a first replica to start.

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
                f"replicas: {min_replicas} to {max_replicas} are no bounds; "
                "the least must be at least 0 and at most the most"
            )
        if ready_replicas is not None:
            self._start_times.follow(now_s, current_replicas, ready_replicas)
        decision = self._decide(
            now_s, current_replicas, min_replicas, max_replicas, ready_replicas, waiting
        )
        if ready_replicas is not None:
            self._start_times.follow(now_s, decision.replicas, ready_replicas)
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
            # Whoever woke it may still wait outside, where no report tells of it.
            self._waited_s = now_s
        if current_replicas == 0 and min_replicas == 0 and waiting <= 0:
            return Decision(0, "stay at 0: no request waits", horizon_s=self._start_times.horizon_s)
        standing = min(max(current_replicas, low), high)
        seen = self._look(now_s)
        if self._waiting_since_s is not None and not isinstance(seen, _Seen):
            return self._wake(now_s, standing, waiting, low, high)
        if isinstance(seen, str):
            return self._decision(standing, f"hold {standing}: {seen}")
        sizing = self._sizing(low, high)
        required, remark = sizing.required(seen.demand_per_s)
        hold_s = self._hold_s()
        self._guard.observe(now_s, seen.demand_per_s, hold_s)
        idle_s = self._idle_s(now_s)
        # Replicas that keep silent carry their share of the load all the same.
        serving = standing if ready_replicas is None else ready_replicas
        silent = max(1.0, serving / seen.replicas)
        current_per_s = seen.current_per_s

        replicas = max(standing, required)
        if required > standing:
            reason = f"scale out {standing} -> {required}"
        elif min_replicas == 0 and silent == 1 and idle_s > self._idle_limit_s():
            replicas, reason = 0, f"scale in {standing} -> 0: no request for {idle_s:.0f} s"
        elif required == standing:
            reason = f"keep {standing}"
        elif self._guard.watched_s(now_s) < hold_s:
            reason = f"keep {standing}: watched for less than {hold_s:g} s"
        else:
            cautious_per_s = silent * self._guard.cautious_per_s(
                seen.demand_per_s, current_per_s, self._settings.window_s
            )
            replicas = min(standing, sizing.required(cautious_per_s)[0])
            reason = (
                f"scale in {standing} -> {replicas}: {cautious_per_s:.4g}/s is the most of "
                f"{hold_s:g} s"
                if replicas < standing
                else f"keep {standing}: {cautious_per_s:.4g}/s of the last {hold_s:g} s needs it"
            )
        return self._decision(
            replicas,
            f"{reason}; offered {current_per_s:.4g}/s, demand {seen.demand_per_s:.4g}/s "
            f"by {seen.forecast.method}, which needs {required}{remark or self._model_remark()}",
            arrival_rate_per_s=current_per_s,
            forecast_per_s=seen.forecast.expected_per_s,
            required_replicas=required,
            predicted_service_level=sizing.service_level(seen.demand_per_s, max(1, replicas)),
            backlog=seen.backlog,
            demand_per_s=seen.demand_per_s,
            method=seen.forecast.method,
            margin=seen.forecast.margin,
            sla_rate_per_s=sizing.sla_rate_per_s(),
        )

    def _decision(self, replicas: int, reason: str, **known: Any) -> Decision:
        return Decision(
            replicas,
            reason,
            horizon_s=self._start_times.horizon_s,
            hold_s=self._hold_s(),
            correction=self._model_error.correction,
            model_error=self._model_error.error,
            **known,
        )

    def _look(self, now_s: float) -> "_Seen | str":
        """Put together what the reports say of now, or say why they do not."""
        age_s = now_s - self._load.newest_s
        if math.isinf(age_s):
            return "no replica has reported yet"
        if age_s > STALE_AFTER_S:
            self._guard.interrupt()
            return f"the newest report is {age_s:.0f} s old"
        self._forget(now_s)
        cutoff_s = min(self._load.newest_s, now_s) - MAX_LAG_S
        live = [report for report in self._reports.values() if report.time_s >= cutoff_s]
        history = self._load.history(now_s, self._settings.window_s, self._settings.retries)
        if history is None or not live:
            return "the arrival rate is not known yet"
        self._median_replicas = median_replicas(live)
        self._revise_model(now_s)
        forecaster = self._forecaster_in_force()
        forecaster.observe(history.end_s, history.rates_per_s)
        forecast = forecaster.forecast(now_s, self._start_times.horizon_s, self._settings.risk)
        if forecast is None:
            return "the arrival rate is not known yet"
        backlog = sum(
            max(0.0, report.queue_length - _ORDINARY_BATCHES * report.full_batch_size)
            for report in live
        )
        return _Seen(
            replicas=len(live),
            current_per_s=history.current_per_s,
            forecast=forecast,
            backlog=backlog,
            demand_per_s=self._settings.burst_factor * forecast.demand_per_s
            + backlog / self._settings.backlog_drain_s,
        )

    def _sizing(self, low: int, high: int) -> LiveSizing:
        return LiveSizing(
            self._median_replicas, self._settings.delays, self._model_error.correction, low, high
        )

    def _revise_model(self, now_s: float) -> None:
        # While the SLA is changing, what is late is late by one or the other.
        one = self._median_replicas[0]
        if len(self._median_replicas) == 1 and one.curve is not None:
            allowed = 1 - one.objective.percentile / 100
            self._model_error.revise(
                now_s, one.curve, allowed, one.batch_size, self._settings.retries
            )

    def _model_remark(self) -> str:
        correction = self._model_error.correction
        if correction > LEAST_CORRECTION:
            return ""
        return f"; devices are slower than their profile beyond the correction of {correction:g}"

    def _forecaster_in_force(self) -> DemandForecaster:
        """Give the forecaster of the settings and the SLA; a new one inherits the history."""
        strictest = max(one.objective.percentile for one in self._median_replicas)
        wanted = (self._settings.forecast, 1 - strictest / 100)
        if wanted != self._forecasts_for:
            heir = DemandForecaster(*wanted)
            heir.load_state(self._forecaster.state_dict())
            self._forecaster, self._forecasts_for = heir, wanted
        return self._forecaster

    def _hold_s(self) -> float:
        settings = self._settings
        if settings.hold_s is not None:
            return settings.hold_s
        return measured_hold_s(self._start_times.horizon_s, settings.window_s)

    def _note_waiting(self, now_s: float, waiting: float) -> None:
        if waiting <= 0:
            self._waiting_since_s = None
            return
        self._waited_s = now_s
        if self._waiting_since_s is None:
            self._waiting_since_s = now_s

    def _wake(self, now_s: float, standing: int, waiting: float, low: int, high: int) -> Decision:
        """Order for requests that wait while nothing serves.

        By the rate at which they came, not by how many they are: as long as no replica starts they
        become ever more, and the load does not.
        """
        since_s = now_s if self._waiting_since_s is None else self._waiting_since_s
        rate_per_s = waiting / max(1.0, now_s - since_s)
        required = self._sizing(low, high).required(rate_per_s)[0] if self._median_replicas else low
        replicas = max(standing, required)
        return self._decision(
            replicas, f"order {replicas}: {waiting:g} requests wait and nothing serves"
        )

    def _idle_s(self, now_s: float) -> float:
        return now_s - max(self._load.last_request_s, self._load.first_s, self._waited_s)

    def _idle_limit_s(self) -> float:
        # Who comes just after waits for a start: not to be risked for less time than that saves.
        return max(self._settings.idle_s, self._start_times.horizon_s)

    def state_dict(self) -> dict[str, Any]:
        """Give all that was learned, as plain numbers, text, lists and tables (JSON can hold it).

        Not the latest reports: they come anew every second.
        """
        return {
            "version": _STATE_VERSION,
            "load": self._load.state_dict(),
            "settings": self._settings.to_floats(),
            "start_times": self._start_times.state_dict(),
            "demands": self._guard.state_dict(),
            "model_error": self._model_error.state_dict(),
            "forecasts_for": list(self._forecasts_for),
            "forecaster": self._forecaster.state_dict(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave; left as it was where that is not usable.

        Raises
        ------
        InvalidInputError
            The state is of another version, or not of this form.
        """
        if not isinstance(state, Mapping) or state.get("version") != _STATE_VERSION:
            raise InvalidInputError(f"state: must be of version {_STATE_VERSION}")
        try:
            load = OfferedLoad.from_state(state["load"])
            settings = AutoscalerSettings.from_floats(state["settings"])
            start_times = StartTimes.from_state(state["start_times"])
            guard = ScaleInGuard.from_state(state["demands"])
            model_error = SlaRateCorrection()
            model_error.load_state(state["model_error"])
            forecast, late_share = state["forecasts_for"]
            forecaster = DemandForecaster(str(forecast), float(late_share))
            forecaster.load_state(state["forecaster"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInputError(f"state: not usable ({error!r})") from error
        self._load, self._settings, self._start_times = load, settings, start_times
        self._guard, self._model_error = guard, model_error
        self._forecaster, self._forecasts_for = forecaster, (str(forecast), float(late_share))
        self._reports = {}

    def _forget(self, now_s: float) -> None:
        cutoff_s = now_s - _FORGET_AFTER_S
        self._load.forget_before(cutoff_s)
        for name in [name for name, seen in self._reports.items() if seen.time_s < cutoff_s]:
            del self._reports[name]


@dataclass(frozen=True)
class _Seen:
    """What the live replicas report, summed up."""

    replicas: int
    current_per_s: float
    forecast: DemandForecast
    backlog: float
    demand_per_s: float
