"""M/D/c sizing as in Faro: the least replicas whose estimated percentile is within the SLA.

Jeon et al., "A House United Within Itself: SLO-Awareness for On-Premises Containerized ML Inference
Clusters via Faro", EuroSys 2025: the replicas of a model are the c servers of one queue with
Poisson arrivals and a constant service time, and autoscaling takes the least c whose percentile of
the latency is within the target. Of Faro this is the sizing alone; its sharing of a cluster between
models has no part here. Choices of ours, where batching or its forecast are concerned:

- A request occupies a replica for its share of a full batch, so that c replicas carry what they
  really carry; and it is answered a full batch time after its wait.
- The wait of M/D/c is taken as half of that of M/M/c at the same percentile, the field's rule: the
  mean waits stand in that ratio exactly for c = 1 (Pollaczek and Khinchine) and nearly for more
  (Cosmetatos, "Some approximate equilibrium results for the multi-server queue (M/G/r)",
  Operational Research Quarterly 27, 1976).
- Faro predicts a distribution of the rates to come with a neural network; here stands the highest
  ten-second mean of the last `look_back_s`, times a headroom (its knob).
"""

import math
from collections import deque

from policy.errors import InfeasibleError, InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from simulator.scaling import FleetView

#: The rate counts as a mean over this long.
MEAN_S = 10


def mmc_wait_percentile_s(
    arrival_rate_per_s: float, service_time_s: float, servers: int, percentile: float
) -> float:
    """Give a percentile of the wait in M/M/c, infinite at or above capacity.

    P(W > t) = C(c, a) exp(-(c/s - λ) t), with Erlang's C, a = λ s and the service time s.

    Parameters
    ----------
    arrival_rate_per_s, service_time_s : float
    servers : int
    percentile : float
        Between 0 and 100.
    """
    erlangs = arrival_rate_per_s * service_time_s
    if erlangs >= servers:
        return math.inf
    loss = 1.0
    for server in range(1, servers + 1):  # Erlang's B, by its recursion
        loss = erlangs * loss / (server + erlangs * loss)
    delayed = loss / (1 - erlangs / servers * (1 - loss))
    late = 1 - percentile / 100
    if delayed <= late:
        return 0.0
    return math.log(delayed / late) / (servers / service_time_s - arrival_rate_per_s)


class MdcSizing:
    """The least replicas that an M/D/c queue needs.

    Parameters
    ----------
    profile : Profile
    objective : ServiceLevelObjective
    headroom : float
        Factor on the rate.
    look_back_s : int
        The highest rate of this long counts.
    name : str

    Raises
    ------
    InfeasibleError
        A full batch alone takes longer than the SLA's response time.
    """

    def __init__(
        self,
        profile: Profile,
        objective: ServiceLevelObjective,
        headroom: float = 1.0,
        look_back_s: int = 120,
        name: str = "M/D/c",
    ) -> None:
        if not (headroom > 0 and look_back_s >= 1):
            raise InvalidInputError(
                f"headroom and look_back_s must be above 0, not {headroom:g} and {look_back_s}"
            )
        size = profile.best_batch_size
        self.name = name
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

    @property
    def forecast_per_s(self) -> float:
        """Rate that it last sized for; NaN before it knows one."""
        return self._headroom * max(self._means, default=math.nan)

    def replicas(self, view: FleetView) -> int:
        """Give the replicas that should be ordered."""
        self._offered.append(view.offered)
        self._means.append(sum(self._offered) / len(self._offered))
        return self.least(self.forecast_per_s)

    def least(self, arrival_rate_per_s: float) -> int:
        """Give the least replicas whose estimated percentile is within the SLA."""
        replicas = math.floor(arrival_rate_per_s * self._service_time_s) + 1
        while self.percentile_ms(arrival_rate_per_s, replicas) > self._objective.response_time_ms:
            replicas += 1
        return replicas

    def percentile_ms(self, arrival_rate_per_s: float, replicas: int) -> float:
        """Estimate the SLA's percentile of the response time; infinite where it has none."""
        wait_s = mmc_wait_percentile_s(
            arrival_rate_per_s, self._service_time_s, replicas, self._objective.percentile
        )
        return self._batch_ms + 1e3 * wait_s / 2
