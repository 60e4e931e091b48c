"""Queueing-model sizing on the mean latency, as in llm-d's Workload Variant Autoscaler.

A replica is a Markovian queue whose service rate depends on the number of requests in it: with n of
them, min(n, B) / latency(min(n, B)) per second, up to the largest batch B. The highest arrival rate
is found at which the mean time in this queue is within the target. Replicas are the rate of the
last minute over that, decided once a minute.

Source: llm-d/llm-d-workload-variant-autoscaler, ``docs/modeling-optimization.md`` and
``pkg/analyzer`` (`MM1ModelStateDependent`, a queue of at most ten batches). There, the targets are
means of the time to the first token and between tokens; here, one answer is one token, and the
target is a share (the knob) of the SLA's response time. It chooses among kinds of accelerators as
well, of which there is one here.
"""

import math
from collections import deque

import numpy as np

from autoscaler.simulator.scaling import FleetView
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile

#: Requests that may wait in the queue of the model, in largest batches.
_QUEUE_BATCHES = 10
_WINDOW_S = 60


def mean_time_ms(profile: Profile, arrival_rate_per_s: float) -> float:
    """Return the mean time in the state-dependent queue of one replica, in ms.

    Parameters
    ----------
    profile : Profile
    arrival_rate_per_s : float
        Above 0.
    """
    most = profile.max_batch_size
    sizes = np.minimum(np.arange(1, (1 + _QUEUE_BATCHES) * most + 1), most)
    rates_per_s = 1e3 * sizes / profile.latency_ms[sizes - 1]
    logs = np.concatenate([[0.0], np.cumsum(np.log(arrival_rate_per_s / rates_per_s))])
    shares = np.exp(logs - logs.max())
    shares /= shares.sum()
    accepted_per_s = arrival_rate_per_s * (1 - shares[-1])
    return float(1e3 * (np.arange(shares.size) @ shares) / accepted_per_s)


class MeanLatencySizing:
    """The fewest replicas at which a queueing model's mean latency is within a target.

    Parameters
    ----------
    profile : Profile
    objective : ServiceLevelObjective
    target_share : float
        Target of the mean, as a share of the SLA's response time.
    interval_s : int
        Time between two decisions.
    name : str

    Raises
    ------
    InvalidInputError
        A value is not above 0.
    """

    def __init__(
        self,
        profile: Profile,
        objective: ServiceLevelObjective,
        target_share: float = 1.0,
        interval_s: int = 60,
        name: str = "mean latency",
    ) -> None:
        if not (target_share > 0 and interval_s >= 1):
            raise InvalidInputError(
                "target_share and interval_s must be above 0, not "
                f"{target_share:g} and {interval_s}"
            )
        self.name = name
        self.replica_rate_per_s = highest_rate_per_s(
            profile, target_share * objective.response_time_ms
        )
        self._interval_s = interval_s
        self._offered: deque[float] = deque(maxlen=_WINDOW_S)
        self._seconds = 0
        self._decision = 1
        self._rate_per_s = math.nan

    @property
    def forecast_per_s(self) -> float:
        """Arrival rate that it last sized for; NaN before the first."""
        return self._rate_per_s

    def replicas(self, view: FleetView) -> int:
        """Return how many replicas should be ordered."""
        self._offered.append(view.offered)
        if self._seconds % self._interval_s == 0:
            self._rate_per_s = sum(self._offered) / len(self._offered)
            self._decision = max(1, math.ceil(self._rate_per_s / self.replica_rate_per_s - 1e-9))
        self._seconds += 1
        return self._decision


def highest_rate_per_s(profile: Profile, target_ms: float) -> float:
    """Return the highest arrival rate at which the mean time is within `target_ms`.

    It is at least a hundredth of the capacity and at most 0.99 of it, as no target can be met
    outside.
    """
    low, high = 0.01 * profile.capacity_per_s, 0.99 * profile.capacity_per_s
    if mean_time_ms(profile, high) <= target_ms:
        return high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_time_ms(profile, middle) <= target_ms else (low, middle)
    return low
