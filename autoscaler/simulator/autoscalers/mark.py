"""Proportional scaling with a forecast, as in MArk.

Zhang et al., "MArk: Exploiting Cloud Services for Cost-Effective, SLO-Aware Machine Learning
Inference Serving", USENIX ATC 2019: batches as large as the SLA allows, the load predicted over the
time that an instance takes to start, and instances in proportion to it. Where this differs:

- The largest batch that the SLA allows is the largest of which two in a row end in time. A
  replica's rate is the throughput of such batches.
- MArk predicts with an LSTM trained on days of the same service. Here, Holt's linear exponential
  smoothing of ten-second means takes its place; it needs no training. The smoothing is that of
  `autoscaler.forecasting.point_forecasts`, but with faster weights, and a falling trend is followed
  as a rising one is: this autoscaler scales in by its forecast, Sojourn's does not.
- MArk hands the load to serverless functions while its predictions fail. Here, the headroom on the
  predicted rate has to cover that; it is the knob.
"""

import math
from collections import deque

import numpy as np

from autoscaler.forecasting.point_forecasts import holt_level_and_trend
from autoscaler.simulator.scaling import FleetView
from policy.errors import InfeasibleError, InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile

#: Length of the means that are smoothed.
STEP_S = 10
#: Weights of the newest value in the smoothed level and in the smoothed trend.
LEVEL_WEIGHT, TREND_WEIGHT = 0.5, 0.1
#: With these weights, a value this many steps old has less weight than a rounding error.
MAX_STEPS = 400
#: Percentile of the observed start times that is planned for.
START_TIME_PERCENTILE = 90


class MarkProportional:
    """Replicas in proportion to the rate predicted for when one ordered now will serve.

    Parameters
    ----------
    profile : Profile
    objective : ServiceLevelObjective
    start_time_s : float
        Start time assumed until a replica has started.
    headroom : float
        Factor on the predicted rate.
    name : str

    Raises
    ------
    InvalidInputError
        The headroom is not above 0.
    InfeasibleError
        Not even two batches of one in a row end in time.
    """

    def __init__(
        self,
        profile: Profile,
        objective: ServiceLevelObjective,
        start_time_s: float,
        headroom: float = 1.2,
        name: str = "MArk",
    ) -> None:
        if not headroom > 0:
            raise InvalidInputError(f"headroom: must be above 0, not {headroom:g}")
        self.name = name
        self.replica_rate_per_s = replica_rate_per_s(profile, objective)
        self._start_time_s = start_time_s
        self._headroom = headroom
        self._offered: deque[float] = deque(maxlen=STEP_S)
        self._seconds = 0
        self._means: deque[float] = deque(maxlen=MAX_STEPS)
        self._predicted_per_s = math.nan

    @property
    def forecast_per_s(self) -> float:
        """Arrival rate that it last sized for; NaN before the first."""
        return self._headroom * self._predicted_per_s

    def replicas(self, view: FleetView) -> int:
        """Return how many replicas should be ordered."""
        self._offered.append(view.offered)
        self._seconds += 1
        mean = sum(self._offered) / len(self._offered)
        if self._seconds % STEP_S == 0:
            self._means.append(mean)
            if view.start_times_s.size:
                self._start_time_s = float(
                    np.percentile(view.start_times_s[-50:], START_TIME_PERCENTILE)
                )
            self._predicted_per_s = self._rate_ahead(self._start_time_s / STEP_S)
        elif self._seconds < STEP_S:
            self._predicted_per_s = mean
        return max(1, math.ceil(self.forecast_per_s / self.replica_rate_per_s - 1e-9))

    def _rate_ahead(self, steps: float) -> float:
        level, trend = holt_level_and_trend(np.array(self._means), LEVEL_WEIGHT, TREND_WEIGHT)
        return max(0.0, float(level[-1] + steps * trend[-1]))


def replica_rate_per_s(profile: Profile, objective: ServiceLevelObjective) -> float:
    """Return the throughput of the largest batches of which two in a row end in time.

    Raises
    ------
    InfeasibleError
        Not even two batches of one end in time.
    """
    fitting = np.flatnonzero(2 * profile.latency_ms <= objective.response_time_ms)
    if not fitting.size:
        raise InfeasibleError(
            f"MArk: two batches of one take {2 * profile.latency_ms[0]:.4g} ms, more than the "
            f"SLA's {objective.response_time_ms:g} ms"
        )
    rates = np.arange(1, fitting.size + 1) / profile.latency_ms[fitting]
    return float(1e3 * rates.max())
