"""Learn from a past load what watching it would have taught: the forecasts, and their risk.

The risk (`autoscaler.forecasting.calibration`) is learned by a replay of the past: each ten seconds
the demand is forecast at the risk found so far, whole replicas are ordered for it that serve one
start time later, and the minutes that they miss count. No request is simulated.

A trace by the minute does not say how its requests came within the minute. They are taken to have
been a Poisson process, drawn with a fixed seed: without its noise, back-tests would ask for smaller
margins than the seconds need. What was burstier than that cannot be seen, so no risk is learned
from minutes.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoscaler.forecasting.calibration import WindowCalibration
from autoscaler.forecasting.demand import DemandForecaster
from autoscaler.forecasting.load_history import LoadHistory
from autoscaler.history.traces import Trace
from autoscaler.scale_down import ScaleDownStabilizer

FloatArray = NDArray[np.float64]

DAY_S = 86_400
#: No more days of a history are learned: forecasts look back two days, and each takes seconds.
KEPT_DAYS = 3
#: How often a replay decides, and the window of its offered rate.
EVERY_S = 10
#: Seconds that are drawn and learned at a time.
_CHUNK_S = 3600


@dataclass(frozen=True)
class FleetSetting:
    """What a replay of a fleet needs to know about it.

    Attributes
    ----------
    late_share_allowed : float
        Fraction of a minute's requests that may miss the SLA.
    compliant_share : float
        Share of the minutes that should comply.
    start_time_s : float
        From the order of a replica until it serves.
    scale_down_delay_s : float
        How long fewer replicas must have been enough before some go.
    sla_rate_per_s, fleet_rate_per_s : float
        Requests per second within the SLA, of a replica by itself, and of one in a fleet, where
        another replica takes what it refuses. 0 if it is not known, or if no rate keeps the SLA.
    """

    late_share_allowed: float
    compliant_share: float
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

    Attributes
    ----------
    load : LoadHistory
    forecaster : DemandForecaster
    calibration : WindowCalibration
    """

    def __init__(self, setting: FleetSetting) -> None:
        self.load = LoadHistory(setting.late_share_allowed)
        self.forecaster = DemandForecaster(self.load)
        self.calibration = WindowCalibration(setting.compliant_share)
        self._setting = setting
        self._stabilizer = ScaleDownStabilizer()
        self._replicas = 1

    @property
    def risk(self) -> float:
        """The risk in force."""
        return self.calibration.risk

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
        self.load.observe(float(end_s), rates_per_s)
        self.calibration.judge(
            end_s, setting.start_time_s, setting.late_share_allowed, self.load.rates_of_minute
        )
        forecast = self.forecaster.forecast(float(end_s), setting.start_time_s, self.risk)
        assert forecast is not None
        demand = forecast.demand_per_s
        self._stabilizer.observe(end_s, demand, setting.scale_down_delay_s)
        stable = self._stabilizer.stable_demand_per_s(demand, float(rates_per_s.mean()), EVERY_S)
        required, kept = (
            max(1, math.ceil(rate / setting.sla_rate_per_s - 1e-9)) for rate in (demand, stable)
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
    load, calibration : Mapping
        States of a `LoadHistory` and of a `WindowCalibration`.
    method : str
        Name of the forecast in use at the end.
    begin_s, end_s : int
        When the past began and ended.
    """

    setting: FleetSetting
    load: Mapping[str, Any]
    calibration: Mapping[str, Any]
    method: str
    begin_s: int
    end_s: int

    @property
    def days(self) -> float:
        """The length of the past."""
        return (self.end_s - self.begin_s) / DAY_S


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
    for end_s, rates in _known_seconds(trace):
        if trace.step_s > 1 or not setting.knows_rates:
            replay.load.observe(float(end_s), rates)
            continue
        for begin in range(0, rates.size, EVERY_S):
            part = rates[begin : begin + EVERY_S]
            replay.decide(end_s - rates.size + begin + part.size, part)
    return Learned(
        setting,
        replay.load.state_dict(),
        replay.calibration.state_dict(),
        replay.forecaster.method,
        trace.begin_s,
        trace.end_s,
    )


def _known_seconds(trace: Trace) -> Iterator[tuple[int, FloatArray]]:
    """Yield the end and the rates of spans without a gap, of at most an hour each."""
    random = np.random.default_rng(0)
    steps = _CHUNK_S // trace.step_s
    for begin in range(0, trace.counts.size, steps):
        counts = trace.counts[begin : begin + steps]
        begin_s = trace.begin_s + begin * trace.step_s
        rates = counts
        if trace.step_s > 1:
            means = np.repeat(counts / trace.step_s, trace.step_s)
            drawn = random.poisson(np.nan_to_num(means)).astype(np.float64)
            rates = np.where(np.isnan(means), math.nan, drawn)
        known = np.flatnonzero(~np.isnan(rates))
        for span in np.split(known, np.flatnonzero(np.diff(known) > 1) + 1):
            if span.size:
                yield begin_s + int(span[-1]) + 1, rates[span]
