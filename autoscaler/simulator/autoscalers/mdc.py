"""M/D/c sizing, as in Faro: the fewest replicas whose estimated percentile meets the SLA.

Jeon et al., "A House United Within Itself: SLO-Awareness for On-Premises Containerized ML Inference
Clusters via Faro", EuroSys 2025: the replicas of a model are the c servers of one queue with
Poisson arrivals and constant service times, and the autoscaler takes the smallest c whose latency
percentile is within the target. This module implements the sizing alone, not how Faro shares a
cluster between models. Where batching and the forecast are concerned, it differs:

- A request occupies a replica for its share of a full batch, so that c servers have the capacity of
  c replicas. Its response takes its wait and a full batch.
- The wait in M/D/c is taken as half of the wait in M/M/c at the same percentile, the usual rule of
  thumb. The mean waits have exactly this ratio for c = 1 (Pollaczek and Khinchine) and nearly so
  for more (Cosmetatos, "Some approximate equilibrium results for the multi-server queue (M/G/r)",
  Operational Research Quarterly 27, 1976).
- Faro predicts a distribution of the coming rates with a neural network. Here, the highest
  ten-second mean of the last `look_back_s`, times a headroom (the knob), takes its place.
"""

import math
from collections import deque

from autoscaler.simulator.scaling import FleetView
from policy.errors import InfeasibleError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile

#: Length of the means, of which the maximum counts.
MEAN_S = 10


def mmc_wait_percentile_s(
    arrival_rate_per_s: float, service_time_s: float, servers: int, percentile: float
) -> float:
    """Return a percentile of the wait in M/M/c, in s; infinity at or above capacity.

    P(W > t) = C(c, a) exp(-(c/s - λ) t), with Erlang's C, a = λ s and the mean service time s.
    """
    erlangs = arrival_rate_per_s * service_time_s
    if erlangs >= servers:
        return math.inf
    erlang_b = 1.0
    for server in range(1, servers + 1):
        erlang_b = erlangs * erlang_b / (server + erlangs * erlang_b)
    erlang_c = erlang_b / (1 - erlangs / servers * (1 - erlang_b))
    tail = 1 - percentile / 100
    if erlang_c <= tail:
        return 0.0
    return math.log(erlang_c / tail) / (servers / service_time_s - arrival_rate_per_s)


class MdcSizing:
    """The fewest replicas that an M/D/c queue needs, at `headroom` times the highest recent rate.

    `InfeasibleError`: a full batch alone takes longer than the SLA's response time.
    """

    name = "M/D/c"

    def __init__(
        self,
        profile: Profile,
        objective: ServiceLevelObjective,
        headroom: float = 1.0,
        look_back_s: int = 120,
    ) -> None:
        size = profile.best_batch_size
        self._batch_ms = float(profile.latency_ms[size - 1])
        if self._batch_ms > objective.response_time_ms:
            raise InfeasibleError(
                f"M/D/c: a full batch takes {self._batch_ms:.4g} ms, more than the SLA's "
                f"{objective.response_time_ms:g} ms"
            )
        self._service_time_s = 1e-3 * self._batch_ms / size
        self._objective = objective
        self._headroom = headroom
        self._offered: deque[float] = deque(maxlen=MEAN_S)
        self._means: deque[float] = deque(maxlen=look_back_s)
        self._sized_for_per_s, self._required = math.nan, 1

    @property
    def forecast_per_s(self) -> float:
        return self._headroom * max(self._means, default=math.nan)

    def replicas(self, view: FleetView) -> int:
        self._offered.append(view.offered)
        self._means.append(sum(self._offered) / len(self._offered))
        rate_per_s = self.forecast_per_s
        if rate_per_s != self._sized_for_per_s:
            self._sized_for_per_s = rate_per_s
            self._required = self.required_replicas(rate_per_s)
        return self._required

    def required_replicas(self, arrival_rate_per_s: float) -> int:
        """Return the fewest replicas whose estimated percentile meets the SLA."""
        replicas = math.floor(arrival_rate_per_s * self._service_time_s) + 1
        while self.percentile_ms(arrival_rate_per_s, replicas) > self._objective.response_time_ms:
            replicas += 1
        return replicas

    def percentile_ms(self, arrival_rate_per_s: float, replicas: int) -> float:
        """Estimate the SLA's percentile of the response time; infinity at or above capacity."""
        wait_s = mmc_wait_percentile_s(
            arrival_rate_per_s, self._service_time_s, replicas, self._objective.percentile
        )
        return self._batch_ms + 1e3 * wait_s / 2
