"""The autoscaler: reports in, a number of replicas out; no Ray and no clock.

Each decision takes the load that clients offer, forecasts its peak until a replica ordered now has
started, and asks `autoscaler.sizing` for the least replicas that keep the SLA. More are ordered at
once. Fewer are kept only if they would have met the SLA at the highest load of the last `hold_s`,
and if the noise of Poisson arrivals alone would hardly call for the others again. Without fresh
reports nothing changes.
"""

import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autoscaler.forecast import FORECASTERS, RateHistory
from autoscaler.live_sizing import LiveSizing
from autoscaler.offered_load import MAX_LAG_S, OfferedLoad
from autoscaler.reports import AutoscalerSettings, ReplicaReport
from policy.objective import ServiceLevelObjective
from sojourn.errors import InvalidInputError

__all__ = ["Autoscaler", "AutoscalerSettings", "Decision", "ReplicaReport"]

#: Reports older than this say nothing of now.
STALE_AFTER_S = 10.0
#: Standard deviations of Poisson noise that must not undo a scale-in.
_NOISE_DEVIATIONS = 4.0
#: Full batches per replica that may wait without being a backlog.
_ORDINARY_BATCHES = 2
_START_TIMES_KEPT = 50
_START_TIME_PERCENTILE = 90
_FORGET_AFTER_S = 3600.0
_STATE_VERSION = 1


@dataclass(frozen=True)
class Decision:
    """How many replicas there should be, and why.

    Attributes
    ----------
    replicas : int
    reason : str
        One line for people.
    arrival_rate_per_s : float or None
        What clients offer now; None where that is not known.
    forecast_per_s : float or None
        The highest rate to expect until a replica ordered now has started.
    required_replicas : int or None
        What forecast, burst factor and backlog call for now, before the scale-in hold.
    predicted_service_level : float or None
        Fraction of the requests in time with `replicas` replicas under that load.
    backlog : float
        Requests that wait beyond what is ordinary.
    horizon_s : float
        How far the forecast looks ahead: the time that a replica takes to start.
    demand_per_s : float or None
        The rate that was sized for: the forecast with its margin, the burst factor and the backlog.
    method : str
        The forecast that was used.
    margin : float
        What the forecast was multiplied by so that it is exceeded with a chance of `risk` alone.
    sla_rate_per_s : float or None
        What one replica takes under the SLA, corrected; None where replicas do not tell.
    correction : float
        What the rate that the replicas tell was multiplied by, from what was measured.
    model_error : float or None
        Measured less predicted share of late requests; None while nothing can be told.
    hold_s : float
        How long fewer replicas must have been enough before some go.
    """

    replicas: int
    reason: str
    arrival_rate_per_s: float | None = None
    forecast_per_s: float | None = None
    required_replicas: int | None = None
    predicted_service_level: float | None = None
    backlog: float = 0.0
    horizon_s: float = 0.0
    demand_per_s: float | None = None
    method: str = ""
    margin: float = 1.0
    sla_rate_per_s: float | None = None
    correction: float = 1.0
    model_error: float | None = None
    hold_s: float = 0.0


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
        self._start_times_s: dict[str, float] = {}
        self._watched_since_s: float | None = None
        self._highest_demand = _Highest()
        self._highest_batch_ms = _Highest()

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
            self._reports[report.replica_id] = report
            if report.settings is not None and report.time_s >= newest_s:
                self._settings = report.settings
            if report.start_time_s > 0:
                self._start_times_s[report.replica_id] = report.start_time_s
                if len(self._start_times_s) > _START_TIMES_KEPT:
                    del self._start_times_s[next(iter(self._start_times_s))]

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
        ready_replicas : int, optional
            Those of them that serve, whether they report or not. None: not known.
        waiting : float
            Requests that wait outside for a first replica to start.
        min_replicas, max_replicas : int
            Bounds. Never fewer than one is decided: without a replica no arrival is counted.

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
        low, high = max(1, min_replicas), max(1, max_replicas)
        standing = min(max(current_replicas, low), high)
        horizon_s = self._horizon_s()
        seen = self._look(now_s, horizon_s)
        if isinstance(seen, str):
            return Decision(standing, f"hold {standing}: {seen}", horizon_s=horizon_s)

        sizing = LiveSizing(
            seen.batch_size, seen.batch_ms, self._settings, seen.objectives, low, high
        )
        required, remark = sizing.required(seen.demand_per_s)
        # Random routing gives every replica the same share, those that keep silent included.
        silent = max(1.0, standing / seen.replicas)
        burst = silent * self._settings.burst_factor
        hold_s = self._settings.hold_s or max(30.0, horizon_s)
        self._highest_demand.add(now_s, burst * seen.forecast_per_s + seen.drain_per_s, hold_s)
        self._highest_batch_ms.add(now_s, seen.batch_ms, hold_s)
        if self._watched_since_s is None:
            self._watched_since_s = now_s

        replicas = max(standing, required)
        if required > standing:
            reason = f"scale out {standing} -> {required}"
        elif required == standing:
            reason = f"keep {standing}"
        elif now_s - self._watched_since_s < hold_s:
            reason = f"keep {standing}: watched for less than {hold_s:g} s"
        else:
            cautious_per_s = max(self._highest_demand.value, burst * self._noisy_mean_per_s(seen))
            held = replace(sizing, batch_ms=self._highest_batch_ms.value)
            replicas = min(standing, held.required(cautious_per_s)[0])
            reason = (
                f"scale in {standing} -> {replicas}: {cautious_per_s:.4g}/s was the most in "
                f"{hold_s:g} s"
                if replicas < standing
                else f"keep {standing}: {cautious_per_s:.4g}/s in the last {hold_s:g} s needs it"
            )
        current_per_s = seen.history.current_per_s
        return Decision(
            replicas=replicas,
            reason=f"{reason}; offered {current_per_s:.4g}/s, expected {seen.demand_per_s:.4g}/s, "
            f"which needs {required}{remark}",
            arrival_rate_per_s=current_per_s,
            forecast_per_s=seen.forecast_per_s,
            required_replicas=required,
            predicted_service_level=sizing.service_level(seen.demand_per_s, replicas),
            backlog=seen.backlog,
            horizon_s=horizon_s,
        )

    def _look(self, now_s: float, horizon_s: float) -> "_Seen | str":
        """Put together what the reports say of now, or say why they do not."""
        age_s = now_s - self._load.newest_s
        if math.isinf(age_s):
            return "no replica has reported yet"
        if age_s > STALE_AFTER_S:
            self._watched_since_s = None
            return f"the newest report is {age_s:.0f} s old"
        self._forget(now_s)
        live = self._live_reports(now_s)
        history = self._load.history(now_s, self._settings.window_s, self._settings.retries)
        if history is None or not live:
            return "the arrival rate is not known yet"
        forecaster = FORECASTERS.get(self._settings.forecast, FORECASTERS["last"])
        forecast_per_s = forecaster.peak_per_s(history, horizon_s)
        backlog = sum(
            max(0.0, report.queue_length - _ORDINARY_BATCHES * report.full_batch_size)
            for report in live
        )
        drain_per_s = backlog / self._settings.backlog_drain_s
        return _Seen(
            replicas=len(live),
            history=history,
            forecast_per_s=forecast_per_s,
            backlog=backlog,
            drain_per_s=drain_per_s,
            demand_per_s=self._settings.burst_factor * forecast_per_s + drain_per_s,
            batch_size=statistics.median(report.full_batch_size for report in live),
            batch_ms=statistics.median(report.full_batch_ms for report in live),
            objectives=tuple(dict.fromkeys(report.objective for report in live)),
        )

    def _noisy_mean_per_s(self, seen: "_Seen") -> float:
        """Give the highest rate that noise alone is likely to show in a window, at this load."""
        window_s = self._settings.window_s
        mean_s = max(window_s, self._settings.hold_s or 0.0)
        steps = max(1, round(mean_s / seen.history.step_s))
        mean = float(np.mean(seen.history.rates_per_s[-steps:]))
        # The mean itself may have been low by chance; windows to come may be high by chance.
        deviations = math.sqrt(mean / mean_s) + math.sqrt(mean / window_s)
        return mean + _NOISE_DEVIATIONS * deviations

    def state_dict(self) -> dict[str, Any]:
        """Give all that was learned, as plain numbers, lists and tables (JSON can hold it).

        Not the latest reports: they come anew every second.
        """
        return {
            "version": _STATE_VERSION,
            "load": self._load.state_dict(),
            "settings": self._settings.to_floats(),
            "start_times_s": dict(self._start_times_s),
            "watched_since_s": self._watched_since_s,
            "highest_demand": self._highest_demand.state(),
            "highest_batch_ms": self._highest_batch_ms.state(),
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
            start_times_s = {str(k): float(v) for k, v in state["start_times_s"].items()}
            since = state["watched_since_s"]
            watched_since_s = None if since is None else float(since)
            highest_demand = _Highest(state["highest_demand"])
            highest_batch_ms = _Highest(state["highest_batch_ms"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInputError(f"state: not usable ({error!r})") from error
        self._load, self._settings, self._start_times_s = load, settings, start_times_s
        self._watched_since_s = watched_since_s
        self._highest_demand, self._highest_batch_ms = highest_demand, highest_batch_ms
        self._reports = {}

    def _live_reports(self, now_s: float) -> list[ReplicaReport]:
        cutoff_s = min(self._load.newest_s, now_s) - MAX_LAG_S
        return [report for report in self._reports.values() if report.time_s >= cutoff_s]

    def _horizon_s(self) -> float:
        if not self._start_times_s:
            return 0.0
        seen = sorted(self._start_times_s.values())
        return seen[math.ceil(_START_TIME_PERCENTILE / 100 * len(seen)) - 1]

    def _forget(self, now_s: float) -> None:
        cutoff_s = now_s - _FORGET_AFTER_S
        self._load.forget_before(cutoff_s)
        for name in [name for name, seen in self._reports.items() if seen.time_s < cutoff_s]:
            del self._reports[name]


class _Highest:
    """The highest value of the last while."""

    def __init__(self, state: Sequence[Sequence[float]] = ()) -> None:
        # Times rise and values fall: what a later and higher value covers is dropped.
        self._values = deque((float(time_s), float(value)) for time_s, value in state)

    @property
    def value(self) -> float:
        return self._values[0][1]

    def add(self, now_s: float, value: float, keep_s: float) -> None:
        while self._values and self._values[-1][1] <= value:
            self._values.pop()
        self._values.append((now_s, value))
        while self._values[0][0] < now_s - keep_s:
            self._values.popleft()

    def state(self) -> list[list[float]]:
        return [list(entry) for entry in self._values]


@dataclass(frozen=True)
class _Seen:
    """What the live replicas report, summed up."""

    replicas: int
    history: RateHistory
    forecast_per_s: float
    backlog: float
    drain_per_s: float
    demand_per_s: float
    batch_size: float
    batch_ms: float
    objectives: tuple[ServiceLevelObjective, ...]
