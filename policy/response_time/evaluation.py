"""The response-time distribution of a batching policy, without simulation.

One device, Poisson arrivals, first come first served, batch times fixed by the batch size. The
queue at the starts of batches is a Markov chain; the ages of the requests in it follow from the
Poisson arrivals. Without batching it is Crommelin's distribution of M/D/1, with a waiting room
M/D/1/K, without any room Erlang's loss system; the tests hold it against these.

Exact up to quadrature are control limits, with and without a max wait and a waiting room, and
tables of actions without a max wait: errors of percentiles under control limits are below 0.003%
for batches up to 32, below 0.1% up to 256. With a max wait, a table that leaves requests behind is
approximate: those that wait behind the oldest at a free device are taken as uniform over its age.
No error of that has been seen in simulations.

Batch times that vary are not modelled. With their means in the profile the percentiles come out
too low: with independent gamma batch times, a control limit of 8 and a max wait of 8 ms on the P4,
by these fractions of the simulated p99 (`benchmarks/paper/percentiles.py`)::

    coefficient of variation    2%      5%      10%     20%
    load 0.1                    0.8%    1.4%    2.2%    5%
    load 0.5                    0.1%    0.1%    0.1%    2%
    load 0.9                    0.7%    3%      10%     28%

A profile of higher quantiles instead of means errs on the other side.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError, InvalidInputError
from policy.profile import Profile
from policy.response_time.action_table import TableChain, TableResponse, TableSystem
from policy.response_time.age_distribution import Mixture
from policy.response_time.control_limit import ControlLimitResponse
from policy.response_time.embedded_chain import ControlLimitSystem, StartChain

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What a batching policy does at an arrival rate.

    Attributes
    ----------
    arrival_rate_per_s : float
        Poisson arrivals, those refused included.
    mean_power_w : float or None
        None if the profile has no energy.
    batch_size_probabilities : ndarray of float, shape (max_batch_size + 1,)
        Entry ``b``: fraction of the batches that have size ``b``.
    full_probability : float
        Fraction of the requests that find no room; 0 without a waiting room.
    device_busy_fraction : float
        Fraction of the time in which a batch is in service.
    """

    arrival_rate_per_s: float
    mean_power_w: float | None
    batch_size_probabilities: FloatArray
    full_probability: float
    device_busy_fraction: float
    _chain: StartChain | TableChain

    @cached_property
    def response_times(self) -> Mixture:
        """The distribution; computed when first asked for, which takes most of the time."""
        if isinstance(self._chain, TableChain):
            return TableResponse(self._chain)
        return ControlLimitResponse(self._chain)

    @property
    def mean_batch_size(self) -> float:
        """Mean size of a batch."""
        return self._chain.served_per_start

    @property
    def mean_response_ms(self) -> float:
        """Mean time from arrival to the end of the batch, of accepted requests."""
        return self.response_times.mean_ms

    def cdf(self, response_time_ms: ArrayLike) -> FloatArray:
        """Fraction of accepted requests with at most each response time, same shape."""
        times = np.asarray(response_time_ms, dtype=float)
        return self.response_times.cdf(times.ravel()).reshape(times.shape)

    def service_level(self, response_time_ms: float) -> float:
        """Fraction of accepted requests that are answered in time."""
        return float(self.cdf(response_time_ms))

    def response_percentile_ms(self, percentile: float) -> float:
        """Least time within which `percentile` percent of accepted requests are answered.

        Raises
        ------
        InvalidInputError
            `percentile` is not between 0 and 100.
        """
        if not 0 < percentile < 100:
            raise InvalidInputError(f"percentile: must be between 0 and 100, not {percentile:g}")
        return self.response_times.quantile(percentile / 100)


def evaluate(
    profile: Profile,
    batching_policy: BatchingPolicy,
    arrival_rate_per_s: float,
    *,
    waiting_room: int | None = None,
) -> Evaluation:
    """Evaluate a batching policy under Poisson arrivals.

    Parameters
    ----------
    profile : Profile
        Batch times, and energies if known.
    batching_policy : BatchingPolicy
        What a free device does.
    arrival_rate_per_s : float
        Requests per second.
    waiting_room : int, optional
        Requests that may wait besides those in service; those beyond are refused. A request that
        starts a batch by its arrival needs no room. None: all are accepted.

    Raises
    ------
    InvalidInputError
        An argument is wrong.
    InfeasibleError
        Without a waiting room: the policy cannot keep up with the arrival rate.
    """
    if not (arrival_rate_per_s > 0 and np.isfinite(arrival_rate_per_s)):
        raise InvalidInputError(
            f"arrival_rate_per_s: must be above 0 and finite, not {arrival_rate_per_s:g}"
        )
    size = batching_policy.max_batch_size
    if size > profile.max_batch_size:
        raise InvalidInputError(
            f"policy: starts batches of {size}, the profile ends at {profile.max_batch_size}"
        )
    limit = batching_policy.control_limit
    if waiting_room is not None and not waiting_room >= (0 if limit == 1 else limit):
        raise InvalidInputError(
            f"waiting_room: must hold the control limit, {limit}, not {waiting_room}"
        )
    times = profile.latency_ms[:size]
    capacity = 1e3 * size / times[-1]
    if waiting_room is None and arrival_rate_per_s >= capacity:
        raise InfeasibleError(
            f"arrival rate {arrival_rate_per_s:g}/s: the policy serves at most {capacity:.6g}/s"
        )
    wait = batching_policy.max_wait_ms
    wait_ms = np.inf if wait is None else wait
    if wait_ms < 1e-9 * times[0]:
        wait_ms = 0.0  # what is lost in rounding
    rate = 1e-3 * arrival_rate_per_s
    actions = batching_policy.actions
    beyond = len(actions) - size
    is_control_limit = actions[limit:] == (*range(limit, size), *beyond * (size,))
    system = ControlLimitSystem(rate, times, wait_ms, waiting_room, limit)
    chain: StartChain | TableChain
    if is_control_limit and system.room_is_simple():
        chain = StartChain(system)
    else:
        chain = TableChain(TableSystem(rate, times, wait_ms, waiting_room, actions))
    sizes = np.zeros(size + 1)
    np.add.at(sizes, chain.batch_sizes, chain.probabilities)
    power = None
    if profile.energy_mj is not None:
        power = float(sizes[1:] @ profile.energy_mj[:size]) / chain.ms_per_start
    return Evaluation(
        arrival_rate_per_s=float(arrival_rate_per_s),
        mean_power_w=power,
        batch_size_probabilities=sizes,
        full_probability=chain.refused_per_start
        / (chain.refused_per_start + chain.served_per_start),
        device_busy_fraction=float(sizes[1:] @ times) / chain.ms_per_start,
        _chain=chain,
    )
