"""Sum up what the replicas report: the offered load, its forecast, the backlog, the SLA.

`FleetMonitor` keeps everything that is learned from reports; `autoscaler.controller` decides by it.
"""

import math
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from autoscaler.calibration import WindowCalibration
from autoscaler.clocks import MAX_LAG_S, ReplicaClocks
from autoscaler.fast_loop import measured_need
from autoscaler.fleet_status import FleetStatus, UnknownStatus
from autoscaler.forecasting.demand import DEFAULT_UNSERVED_SHARE, DemandForecaster
from autoscaler.history.learning import FleetSetting, Learned
from autoscaler.live_reports import LiveReports
from autoscaler.offered_load import OfferedLoad
from autoscaler.reports import ReplicaReport
from autoscaler.settings import AutoscalerSettings
from autoscaler.sizing.live import LiveSizing, MedianReplica
from autoscaler.sizing.sla_rate_correction import SlaRateCorrection
from autoscaler.start_times import StartTimes

#: Time in which a backlog in the replicas' queues is to be worked off.
BACKLOG_DRAIN_S = 10.0
#: Reports older than this say nothing about the present.
_STALE_AFTER_S = 10.0
#: Nor do those older than this many intervals between reports, if reports come slowly.
_STALE_INTERVALS = 2.5
#: The number of latest intervals between reports, of which the median counts.
_INTERVALS_KEPT = 30
#: A replica that has not reported for this long is forgotten.
_FORGET_AFTER_S = 3600.0


class FleetMonitor:
    """What has been learned from the reports of one deployment's replicas.

    Parameters
    ----------
    settings : AutoscalerSettings
        In force until replicas report others.

    Attributes
    ----------
    settings : AutoscalerSettings
        The settings in force.
    load : OfferedLoad
    start_times : StartTimes
    sla_correction : SlaRateCorrection
    calibration : WindowCalibration
    median_replicas : tuple of MedianReplica
        One per SLA in force; empty until a status was known.
    """

    def __init__(self, settings: AutoscalerSettings) -> None:
        self.settings = settings
        self.load = OfferedLoad()
        self.start_times = StartTimes()
        self.sla_correction = SlaRateCorrection()
        self.calibration = WindowCalibration(settings.complying_share)
        self.median_replicas: tuple[MedianReplica, ...] = ()
        self._reports: dict[str, ReplicaReport] = {}
        #: The newest report of each replica as it was read, before its time was corrected.
        self._read: dict[str, ReplicaReport] = {}
        self._clocks = ReplicaClocks()
        self._intervals_s: deque[float] = deque(maxlen=_INTERVALS_KEPT)
        self._interval_s = 1.0
        #: None after a new report.
        self._live: LiveReports | None = None
        #: Replicas that should report.
        self._expected = 0
        self._forecaster = DemandForecaster(settings.forecast)
        #: The pool and the unserved share that the forecaster was made for.
        self._forecasts_for = (settings.forecast, DEFAULT_UNSERVED_SHARE)

    def observe(self, reports: Iterable[ReplicaReport], now_s: float | None = None) -> None:
        """Take in reports, in any order; late and repeated ones are ignored.

        Parameters
        ----------
        reports : iterable of ReplicaReport
        now_s : float or None
            When they were read, which corrects the clocks of replicas. None: the clocks are right.
        """
        read = self._read
        for report in reports:
            name = report.replica_id
            if read.get(name) is report:
                continue
            read[name] = report
            if now_s is not None:
                placed_s = self._clocks.place(report, now_s)
                if placed_s != report.time_s:
                    report = replace(report, time_s=placed_s)
            newest_s = self.load.newest_s
            if not self.load.observe(report):
                continue
            self._live = None
            before = self._reports.get(name)
            self._reports[name] = report
            if before is not None:
                self._intervals_s.append(report.time_s - before.time_s)
                if report.answered_total and report.sla_rate_per_s:
                    self.sla_correction.count_between(before, report)
            if report.settings is not None and report.time_s >= newest_s:
                self.settings = report.settings
            if report.start_time_s > 0:
                is_first = before is None and report.counted_s > 0
                self.start_times.observe(
                    name,
                    report.start_time_s,
                    report.time_s - report.counted_s if is_first else None,
                )

    @property
    def risk(self) -> float:
        """The risk that the forecast is asked for: as set, or else as calibrated."""
        return self.calibration.risk if self.settings.risk is None else self.settings.risk

    def expect(self, now_s: float, ready_replicas: int) -> None:
        """Note how many replicas serve, whether they report or not."""
        self._expected = self.load.expect(now_s, ready_replicas)

    def status(self, now_s: float) -> FleetStatus | UnknownStatus:
        """Return the state of the fleet, or why it is unknown.

        Parameters
        ----------
        now_s : float
            On the clock of the reports' ``time_s``.
        """
        age_s = now_s - self.load.newest_s
        if math.isinf(age_s):
            return UnknownStatus("no replica has reported yet")
        self._interval_s = statistics.median(self._intervals_s) if self._intervals_s else 1.0
        stale_after_s = max(_STALE_AFTER_S, _STALE_INTERVALS * self._interval_s)
        if age_s > stale_after_s:
            return UnknownStatus(f"the newest report is {age_s:.0f} s old", is_stale=True)
        self._forget_before(now_s - _FORGET_AFTER_S)
        cutoff_s = min(self.load.newest_s, now_s) - MAX_LAG_S
        if self._live is None or self._live.cutoff_s != cutoff_s:
            self._live = LiveReports.of(self._reports.values(), cutoff_s)
        live = self._live
        known_until_s = self._forecaster.end_s
        history = self.load.history(
            now_s,
            self.settings.window_s,
            self.settings.retries,
            -math.inf if known_until_s is None else known_until_s,
        )
        if history is None or not live.replicas:
            return UnknownStatus("the arrival rate is not known yet")
        self.median_replicas = live.median_replicas
        self._revise_correction(now_s)
        forecaster = self._forecaster_in_force()
        forecaster.observe(history.end_s, history.rates_per_s)
        horizon_s = self.start_times.horizon_s
        self.calibration.complying_share = self.settings.complying_share
        self.calibration.judge(
            int(history.end_s), horizon_s, self._late_share_allowed(), forecaster.rates_of_window
        )
        forecast = forecaster.forecast(now_s, horizon_s, self.risk)
        if forecast is None:
            return UnknownStatus("the arrival rate is not known yet")
        reporting = live.reported_since(now_s - stale_after_s)
        silent = max(0, self._expected - reporting)
        share_known = (self._expected - silent) / self._expected if silent else 1.0
        backlog = live.backlog / share_known
        need = measured_need(
            history.recent,
            self.sizing(1, 1).capacity_per_s(),
            self._late_share_allowed(),
            self.settings.retries,
            backlog,
            BACKLOG_DRAIN_S,
        )
        forecast_per_s = self.settings.burst_factor * forecast.demand_per_s
        return FleetStatus(
            replicas=reporting,
            silent_replicas=silent,
            carrying_replicas=max(live.replicas, self._expected),
            report_interval_s=self._interval_s,
            offered_per_s=history.current_per_s,
            forecast=forecast,
            backlog=backlog,
            demand_per_s=max(forecast_per_s, need.rate_per_s),
            urgency=need.reason if need.rate_per_s > forecast_per_s else "",
            bottleneck=live.bottleneck,
        )

    def fleet_setting(self, scale_down_delay_s: float) -> FleetSetting | None:
        """Return what a replay of the past must know of the fleet; None until it is known."""
        if not self.median_replicas:
            return None
        sizing = self.sizing(1, 1)
        return FleetSetting(
            self.settings.forecast,
            self._late_share_allowed(),
            self.settings.complying_share,
            self.start_times.horizon_s,
            scale_down_delay_s,
            sizing.sla_rate_per_s() or 0.0,
            sizing.fleet_rate_per_s() or 0.0,
        )

    def forecasts_from_s(self, now_s: float) -> float:
        """Return since when the forecasts know the load."""
        begin_s = self._forecaster.begin_s
        return now_s if begin_s is None else float(begin_s)

    def learn(self, learned: Learned) -> None:
        """Take over what a history has taught, and go on with what was seen since.

        Raises
        ------
        InvalidInputError
            It has another form, or ends too late. The monitor is then unchanged.
        """
        forecaster = learned.forecaster_before(self._forecaster)
        if learned.windows_judged > self.calibration.judged:
            self.calibration.load_state(learned.calibration)
        self._forecaster = forecaster
        self._forecasts_for = (learned.setting.forecast, learned.setting.late_share_allowed)

    def sizing(self, min_replicas: int, max_replicas: int) -> LiveSizing:
        """Return the sizing by the reports that the last status was made from."""
        return LiveSizing(
            self.median_replicas,
            self.settings.delays,
            self.sla_correction.correction,
            min_replicas,
            max_replicas,
        )

    def _revise_correction(self, now_s: float) -> None:
        # With two SLAs in force it is unknown which of them a late request missed.
        median = self.median_replicas[0]
        if len(self.median_replicas) == 1 and median.curve is not None:
            self.sla_correction.revise(
                now_s,
                median.curve,
                median.objective.late_share_allowed,
                median.batch_size,
                self.settings.retries,
            )

    def _forecaster_in_force(self) -> DemandForecaster:
        """Return the forecaster for the settings and the SLA; a new one takes over the history."""
        wanted = (self.settings.forecast, self._late_share_allowed())
        if wanted != self._forecasts_for:
            successor = DemandForecaster(*wanted)
            successor.load_state(self._forecaster.state_dict())
            self._forecaster, self._forecasts_for = successor, wanted
        return self._forecaster

    def _late_share_allowed(self) -> float:
        return min(one.objective.late_share_allowed for one in self.median_replicas)

    def _forget_before(self, cutoff_s: float) -> None:
        for name in self.load.forget_before(cutoff_s):
            if name in self._reports:
                del self._reports[name], self._read[name]
                self._clocks.forget(name)
                self._live = None

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """Copy what was learned, and return a function that packs it for `from_state`.

        The latest reports are left out, because new ones come every second.
        """
        copied = {
            "load": self.load.state_dict(),
            "settings": self.settings.to_floats(),
            "start_times": self.start_times.state_dict(),
            "sla_correction": self.sla_correction.state_dict(),
            "calibration": self.calibration.state_dict(),
            "forecasts_for": list(self._forecasts_for),
        }
        forecaster = self._forecaster.snapshot()
        return lambda: {**copied, "forecaster": forecaster()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "FleetMonitor":
        """Make a monitor from what the function of a `snapshot` returned.

        Raises
        ------
        InvalidInputError, KeyError, TypeError, ValueError, AttributeError
            The state does not have this form.
        """
        monitor = cls(AutoscalerSettings.from_floats(state["settings"]))
        monitor.load = OfferedLoad.from_state(state["load"])
        monitor.start_times = StartTimes.from_state(state["start_times"])
        monitor.sla_correction.load_state(state["sla_correction"])
        monitor.calibration.load_state(state["calibration"])
        forecast, unserved_share = state["forecasts_for"]
        monitor._forecasts_for = (str(forecast), float(unserved_share))
        monitor._forecaster = DemandForecaster(*monitor._forecasts_for)
        monitor._forecaster.load_state(state["forecaster"])
        return monitor
