"""Learn from a past load what watching it would have taught: the forecasts, and their risk.

The forecaster sees every second of the past, so its calendar of jumps and its back-test begin with
all of it. The risk (`autoscaler.calibration`) is learned by a replay of the last days: each ten
seconds the demand is forecast at the risk found so far, whole replicas are ordered for it that
serve one start time later, and the windows that they miss count. No request is simulated.

A trace by the minute does not say how its requests came within the minute. They are taken to have
been a Poisson process, drawn with a fixed seed: without its noise, back-tests would ask for smaller
margins than the seconds need. What was burstier than that cannot be seen. So no risk is learned
from minutes: nearly all of them would seem to comply, and the risk would rise (on three days of
NASA's trace to 0.06 instead of 0.02).
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoscaler.calibration import WindowCalibration
from autoscaler.forecasting.demand import DemandForecaster
from autoscaler.history.traces import Trace
from autoscaler.scale_in import ScaleInGuard

FloatArray = NDArray[np.float64]

DAY_S = 86_400
#: No more days of a history are learned: older ones count less than a sixteenth.
KEPT_DAYS = 28
#: The risk is learned from the last days: the bound on what it may miss falls with their number,
#: and each takes seconds to replay.
RISK_DAYS = 3
#: How often a replay decides, and the window of its offered rate.
EVERY_S = 10
#: Seconds that are drawn and learned at a time.
_CHUNK_S = 3600


@dataclass(frozen=True)
class FleetSetting:
    """What a replay of a fleet needs to know about it.

    Attributes
    ----------
    forecast : str
        The pool of forecasts; a key of `autoscaler.forecasting.demand.POOLS`.
    late_share_allowed : float
        Fraction of a window's requests that may miss the SLA.
    windows : float
        Share of the one-minute windows that should comply.
    start_time_s : float
        From the order of a replica until it serves.
    scale_down_delay_s : float
        How long fewer replicas must have been enough before some go.
    sla_rate_per_s, fleet_rate_per_s : float
        Requests per second within the SLA, of a replica by itself, and of one in a fleet, where
        another replica takes what it refuses. 0 if it is not known, or if no rate keeps the SLA.
    """

    forecast: str
    late_share_allowed: float
    windows: float
    start_time_s: float
    scale_down_delay_s: float
    sla_rate_per_s: float
    fleet_rate_per_s: float

    @property
    def knows_rates(self) -> bool:
        """Whether orders can be computed from a demand."""
        return self.sla_rate_per_s > 0 and self.fleet_rate_per_s > 0


class FleetReplay:
    """A fleet ordered for a load of which only the requests per second are known.

    Parameters
    ----------
    setting : FleetSetting
    risk : float, optional
        A fixed risk; None calibrates it.
    learned : Learned, optional
        What an earlier load has taught.

    Attributes
    ----------
    forecaster : DemandForecaster
    calibration : WindowCalibration
    """

    def __init__(
        self,
        setting: FleetSetting,
        risk: float | None = None,
        learned: "Learned | None" = None,
    ) -> None:
        self.forecaster = DemandForecaster(setting.forecast, setting.late_share_allowed)
        self.calibration = WindowCalibration(setting.windows)
        self._setting = setting
        if learned is not None:
            self.forecaster.load_state(learned.forecaster)
            self.calibration.load_state(learned.calibration)
        self._guard = ScaleInGuard()
        self._risk = risk
        self._replicas = 1

    @property
    def risk(self) -> float:
        """The risk in force."""
        return self.calibration.risk if self._risk is None else self._risk

    def decide(self, end_s: int, rates_per_s: FloatArray) -> int:
        """Return the replicas to order after `EVERY_S` more seconds.

        Parameters
        ----------
        end_s : int
            When they ended.
        rates_per_s : ndarray of float, shape (seconds,)
            The requests of each.
        """
        setting = self._setting
        self.forecaster.observe(float(end_s), rates_per_s)
        self.calibration.judge(
            end_s, setting.start_time_s, setting.late_share_allowed, self.forecaster.rates_of_window
        )
        forecast = self.forecaster.forecast(float(end_s), setting.start_time_s, self.risk)
        assert forecast is not None
        demand = forecast.demand_per_s
        self._guard.observe(end_s, demand, setting.scale_down_delay_s)
        cautious = self._guard.cautious_demand_per_s(demand, float(rates_per_s.mean()), EVERY_S)
        required, kept = (
            max(1, math.ceil(rate / setting.sla_rate_per_s - 1e-9)) for rate in (demand, cautious)
        )
        self._replicas = required if required > self._replicas else min(self._replicas, kept)
        self.calibration.note_order(float(end_s), self._replicas * setting.fleet_rate_per_s)
        return self._replicas


@dataclass(frozen=True)
class Learned:
    """What a past load has taught.

    Attributes
    ----------
    setting : FleetSetting
        For which it was learned.
    forecaster, calibration : Mapping
        States of a `DemandForecaster` and of a `WindowCalibration`.
    begin_s, end_s : int
        When the past began and ended.
    """

    setting: FleetSetting
    forecaster: Mapping[str, Any]
    calibration: Mapping[str, Any]
    begin_s: int
    end_s: int

    @property
    def days(self) -> float:
        """The length of the past."""
        return (self.end_s - self.begin_s) / DAY_S

    @property
    def windows_judged(self) -> int:
        """How many windows the risk was learned from."""
        return int(self.calibration["judged"])

    def forecaster_before(self, newer: DemandForecaster) -> DemandForecaster:
        """Return a forecaster that knows the past, and what another one has seen since.

        Raises
        ------
        InvalidInputError
            It has another form, or ends after the newer one's load begins.
        """
        forecaster = DemandForecaster(self.setting.forecast, self.setting.late_share_allowed)
        forecaster.load_state(self.forecaster)
        forecaster.go_on_with(newer)
        return forecaster


def learn(trace: Trace, setting: FleetSetting) -> Learned:
    """Learn from a past load.

    Parameters
    ----------
    trace : Trace
        At the times of the clock of decisions. Only its last `KEPT_DAYS` count.
    setting : FleetSetting

    Returns
    -------
    Learned
        The same for the same trace and setting.
    """
    trace = trace.last(KEPT_DAYS * DAY_S)
    replay = FleetReplay(setting)
    replayed_s = RISK_DAYS * DAY_S if trace.step_s == 1 and setting.knows_rates else 0
    replayed_from_s = trace.end_s - replayed_s
    for end_s, rates in _known_seconds(trace):
        if end_s <= replayed_from_s:
            replay.forecaster.observe(float(end_s), rates)
            continue
        for begin in range(0, rates.size, EVERY_S):
            part = rates[begin : begin + EVERY_S]
            replay.decide(end_s - rates.size + begin + part.size, part)
    return Learned(
        setting,
        replay.forecaster.state_dict(),
        replay.calibration.state_dict(),
        trace.begin_s,
        trace.end_s,
    )


def rates_by_second(trace: Trace, random: np.random.Generator) -> FloatArray:
    """Return a trace's requests in each second; drawn, where only those of longer steps are known.

    Returns
    -------
    ndarray of float, shape (seconds,)
        NaN where they are not known.
    """
    if trace.step_s == 1:
        return trace.counts
    means = np.repeat(trace.counts / trace.step_s, trace.step_s)
    drawn = random.poisson(np.nan_to_num(means)).astype(np.float64)
    return np.where(np.isnan(means), math.nan, drawn)


def _known_seconds(trace: Trace) -> Iterator[tuple[int, FloatArray]]:
    """Yield the end and the rates of spans without a gap, of at most an hour each."""
    random = np.random.default_rng(0)
    steps = _CHUNK_S // trace.step_s
    for begin in range(0, trace.counts.size, steps):
        part = Trace(
            trace.counts[begin : begin + steps],
            trace.step_s,
            trace.begin_s + begin * trace.step_s,
            trace.is_absolute,
        )
        rates = rates_by_second(part, random)
        known = np.flatnonzero(~np.isnan(rates))
        for span in np.split(known, np.flatnonzero(np.diff(known) > 1) + 1):
            if span.size:
                yield part.begin_s + int(span[-1]) + 1, rates[span]
