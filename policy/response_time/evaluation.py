"""The response-time distribution of a batching policy under Poisson arrivals.

There are two evaluators:

- *Exact*: control limits with constant batch times, with and without a max wait and a waiting room.
  The queue at the starts of batches is a Markov chain; the ages of the requests in it follow from
  the Poisson arrivals (docs/policy.md). Percentiles are off by less than 0.003% for batches
  of up to 32, less than 0.1% up to 256. Without batching the result is Crommelin's distribution of
  M/D/1, with a waiting room M/D/1/K, without any room Erlang's loss system; the tests compare.
- *Sampled*: all else, that is tables that leave requests behind, batch times that vary
  (`Profile.latency_quantiles`), and an event loop beside the device (`profile.event_loop`). The
  policy is followed on a fixed sample of arrivals (`policy.response_time.sample`), in 10 to 40 ms.
  The evaluation says the standard error of each percentile: mostly below 1% up to the 99th.

Without the quantiles the percentiles of a device whose batch times vary come out too low, by up to
60% (docs/policy.md). An event loop that shares the device's CPU makes one server of both
(`Profile.serial`).
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError, InvalidInputError
from policy.profile import LEAST_RATE_PER_S, MAX_LOAD, TOO_CLOSE, Profile
from policy.response_time.control_limit_chain import ControlLimitChain, ControlLimitQueue
from policy.response_time.control_limit_response import ControlLimitResponse
from policy.response_time.sample import Sample
from policy.values import check_above_0

FloatArray = NDArray[np.float64]


# A max wait below this share of the shortest batch is rounding, and none.
_NO_WAIT = 1e-9


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The performance of a batching policy at an arrival rate.

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
    _found: ControlLimitChain | Sample

    @cached_property
    def response_times(self) -> ControlLimitResponse | Sample:
        """The distribution; where it is exact, computed on first use, which takes most of it."""
        if isinstance(self._found, ControlLimitChain):
            return ControlLimitResponse(self._found)
        return self._found

    @property
    def is_exact(self) -> bool:
        """Whether the distribution is computed, not sampled."""
        return not isinstance(self._found, Sample)

    @property
    def mean_batch_size(self) -> float:
        """Mean size of a batch."""
        return self._found.served_per_start

    @property
    def mean_response_ms(self) -> float:
        """Mean response time of accepted requests."""
        return self.response_times.mean_ms

    def cdf(self, response_time_ms: ArrayLike) -> FloatArray:
        """Return the fraction of accepted requests with at most each response time, same shape."""
        times = np.asarray(response_time_ms, dtype=float)
        return self.response_times.cdf(times.ravel()).reshape(times.shape)

    def service_level(self, response_time_ms: float) -> float:
        """Return the fraction of accepted requests answered within a response time."""
        return float(self.cdf(response_time_ms))

    def response_percentile_ms(self, percentile: float) -> float:
        """Return the least time within which `percentile` percent of requests are answered.

        Requests refused are not among them.
        """
        if not 0 < percentile < 100:
            raise InvalidInputError(f"percentile: must be between 0 and 100, not {percentile:g}")
        return self.response_times.quantile(percentile / 100)

    def percentile_standard_error_ms(self, percentile: float) -> float:
        """Return the standard error of `response_percentile_ms`; 0 where it is exact."""
        distribution = self.response_times
        if isinstance(distribution, Sample):
            return distribution.standard_error_ms(percentile / 100)
        return 0.0


def evaluate(
    profile: Profile,
    batching_policy: BatchingPolicy,
    arrival_rate_per_s: float,
    *,
    max_queue_rows: int | None = None,
    admit_within_ms: float = np.inf,
    answer_within_ms: float = np.inf,
    coarse: bool = False,
) -> Evaluation:
    """Evaluate a batching policy under Poisson arrivals.

    Parameters
    ----------
    max_queue_rows : int, optional
        Requests that may wait besides those in service; those beyond are refused. A request that
        starts a batch by its arrival needs no room. None: all are accepted.
    admit_within_ms : float
        A request that arrives while a batch is in service is refused, too, unless that batch and
        full ones of the profile's largest size, for it and those ahead of it, end within this.
    answer_within_ms : float
        So is one that full batches of the policy's largest size, if that is smaller, would answer
        later than this.
    coarse : bool
        For searches: if the evaluation is sampled, take an eighth of the sample.

    Raises
    ------
    InvalidInputError
        The rate is not a finite number above 0, the profile has no such batch sizes, the waiting
        room does not hold the control limit or another queue for which the policy waits, or
        `admit_within_ms` is given for a profile with an event loop.
    InfeasibleError
        Without a waiting room: the policy cannot keep up with the arrival rate, or so hardly that
        its response times cannot be computed. Its capacity is that of its last action, which long
        queues repeat. With an event loop beside the device, also if the event loop cannot keep up,
        with or without a waiting room.
    """
    profile = profile.serial()
    _check(profile, batching_policy, arrival_rate_per_s, max_queue_rows)
    size = batching_policy.max_batch_size
    times_ms = profile.latency_ms[:size]
    arrivals_per_ms = 1e-3 * max(arrival_rate_per_s, LEAST_RATE_PER_S)
    wait_ms = np.inf if batching_policy.max_wait_ms is None else batching_policy.max_wait_ms
    if wait_ms < _NO_WAIT * times_ms[0]:
        wait_ms = 0.0
    queue = ControlLimitQueue(
        arrivals_per_ms, times_ms, wait_ms, max_queue_rows, batching_policy.control_limit
    )
    found: ControlLimitChain | Sample
    rules = np.empty((0, 3))
    if np.isfinite(admit_within_ms):
        if profile.event_loop is not None:
            raise InvalidInputError("admit_within_ms: is for a device without an event loop")
        rules = np.array([(admit_within_ms, profile.max_batch_size, profile.latency_ms[-1])])
        if size < profile.max_batch_size:
            rules = np.append(rules, [(answer_within_ms, size, times_ms[-1])], axis=0)
    if (
        not rules.size
        and profile.event_loop is None
        and profile.latency_quantiles is None
        and _takes_all(batching_policy, size)
        and queue.refuses_none_below_limit()
    ):
        found = ControlLimitChain(queue)
    else:
        found = Sample(profile, batching_policy, arrivals_per_ms, max_queue_rows, rules, coarse)
        if profile.latency_quantiles is not None:
            times_ms = profile.latency_quantiles.means_ms(times_ms)
    size_probabilities = found.size_probabilities
    busy_fraction = min(float(size_probabilities[1:] @ times_ms) / found.ms_per_start, 1.0)
    power_w = None
    if profile.energy_mj is not None:
        power_w = float(size_probabilities[1:] @ profile.energy_mj[:size]) / found.ms_per_start
        power_w += (profile.idle_power_w or 0.0) * (1 - busy_fraction)
    return Evaluation(
        arrival_rate_per_s=float(arrival_rate_per_s),
        mean_power_w=power_w,
        batch_size_probabilities=size_probabilities,
        full_probability=found.refused_per_start
        / (found.refused_per_start + found.served_per_start),
        device_busy_fraction=busy_fraction,
        _found=found,
    )


def _check(
    profile: Profile, policy: BatchingPolicy, arrival_rate_per_s: float, max_queue_rows: int | None
) -> None:
    check_above_0("arrival_rate_per_s", arrival_rate_per_s)
    size = policy.max_batch_size
    if size > profile.max_batch_size:
        raise InvalidInputError(
            f"policy: starts batches of {size}, but the profile ends at {profile.max_batch_size}"
        )
    if max_queue_rows is not None:
        _check_room(policy, max_queue_rows)
    repeated = policy.actions[-1]
    device = profile if profile.event_loop is None else replace(profile, event_loop=None)
    capacity_per_s = 1e3 * repeated / float(device.batch_interval_ms()[repeated - 1])
    if max_queue_rows is None and arrival_rate_per_s >= MAX_LOAD * capacity_per_s:
        raise InfeasibleError(
            f"arrival rate {arrival_rate_per_s:g}/s: the policy serves at most "
            f"{capacity_per_s:.6g}/s{TOO_CLOSE if arrival_rate_per_s < capacity_per_s else ''}"
        )


def _check_room(policy: BatchingPolicy, max_queue_rows: int) -> None:
    limit = policy.control_limit
    if not max_queue_rows >= (0 if limit == 1 else limit):
        raise InvalidInputError(
            f"max_queue_rows: must hold the control limit, {limit}, not {max_queue_rows}"
        )
    for length, start in policy.start_length.items():
        if length <= max_queue_rows < start and start > 1:
            raise InvalidInputError(
                f"max_queue_rows: must be at least {start}, for which the policy waits, not "
                f"{max_queue_rows}"
            )


def _takes_all(policy: BatchingPolicy, size: int) -> bool:
    """Return whether the policy starts all that wait, from its control limit on."""
    limit, actions = policy.control_limit, policy.actions
    return actions[limit:] == (*range(limit, size), *(len(actions) - size) * (size,))
