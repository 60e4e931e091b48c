"""The response time where requests pass the front before the device, and their answers after it.

Front and device depend on each other in ways that a formula does not catch: a busy front hands
requests on at even intervals, so that they wait less for the device; the same busy period delays a
request's answer as well as the request; and small batches make the front busier. Convolving the
response times of two independent stages is off by up to 35% where the front is the bottleneck
(docs/response_times.md, section 10). So this module follows a fixed stream of Poisson arrivals
through both stages, event by event. The stream is the same at every call, scaled to the rate: equal
arguments give equal results, and policies are compared on the same arrivals.
"""

from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError
from policy.front import FrontCosts
from policy.profile import Profile
from policy.response_time.distribution import ResponseTimeDistribution

FloatArray = NDArray[np.float64]

# Percentiles up to the 99th are then within about 1% where the busier stage is busy for up to 85%
# of the time, and 3% up to 92%. An evaluation takes 15 to 25 ms.
_REQUESTS = 400_000
_SEED = 20220901
# These come before the stationary state.
_WARM_UP = _REQUESTS // 20
# With so many requests unanswered the queue grows without end, or might as well.
_MAX_BACKLOG = _REQUESTS // 20
_MANY_TIMES = 8
# Requests that come this rarely, per time that one takes, are taken as alone.
_CHANCE_TO_MEET = 1e-5


class SampledResponseTimes(ResponseTimeDistribution):
    """The distribution of a sample of response times."""

    def __init__(self, responses_ms: FloatArray) -> None:
        super().__init__()
        self.count = float(responses_ms.size)
        self._sample_ms = responses_ms
        self.mean_ms = float(responses_ms.mean())

    @cached_property
    def _sorted_ms(self) -> FloatArray:
        return np.sort(self._sample_ms)

    def cdf(self, times_ms: FloatArray) -> FloatArray:
        """Return the fraction of requests with at most each response time, shapes (times,)."""
        # Sorting takes as long as counting for some ten times.
        if times_ms.size > _MANY_TIMES or "_sorted_ms" in self.__dict__:
            counts = np.searchsorted(self._sorted_ms, times_ms, side="right")
        else:
            counts = np.array([np.count_nonzero(self._sample_ms <= time) for time in times_ms])
        return np.asarray(counts / self._sample_ms.size)

    def quantile(self, probability: float) -> float:
        """Return the least time in ms whose cdf reaches `probability`."""
        index = min(int(np.ceil(probability * self._sample_ms.size)), self._sample_ms.size) - 1
        return float(self._sorted_ms[max(index, 0)])


class NoResponses(SampledResponseTimes):
    """The response times where the queue grows without end: none is ever reached."""

    def __init__(self) -> None:
        super().__init__(np.array([np.inf]))

    def cdf(self, times_ms: FloatArray) -> FloatArray:
        """Return 0 for each time, shapes (times,)."""
        return np.zeros(times_ms.shape)

    def quantile(self, probability: float) -> float:
        """Return infinity."""
        return np.inf


class Overload:
    """What stands for a `TandemSample` where front and device do not keep up."""

    served_per_start = 1.0
    response_times = NoResponses()


class TandemSample:
    """A batching policy behind a front, on a fixed stream of arrivals.

    Parameters
    ----------
    profile : Profile
        With a front beside the device, or none: a front that takes no time.
    policy : BatchingPolicy
        The max wait counts from a request's arrival at the front.
    arrivals_per_ms : float
    waiting_room : int or None
        Requests that may wait for the device. The front reads those refused, too.

    Attributes
    ----------
    size_probabilities : ndarray of float, shape (max_batch_size + 1,)
        Fraction of the batches by their size, from 0 on.
    served_per_start, refused_per_start, ms_per_start : float
        Means per batch.
    response_times : SampledResponseTimes
        Of accepted requests, from their arrival at the front until their answer leaves it.

    Raises
    ------
    InfeasibleError
        Front and device do not keep up with the arrivals.
    """

    def __init__(
        self,
        profile: Profile,
        policy: BatchingPolicy,
        arrivals_per_ms: float,
        waiting_room: int | None = None,
    ) -> None:
        # Loading numba takes a third of a second, and most profiles do not need it.
        from policy.response_time.tandem_kernel import follow_requests

        front = profile.front or FrontCosts(0.0, 0.0, shares_cpu=False)
        largest = policy.max_batch_size
        _check_front(front, arrivals_per_ms, largest)
        arrivals, deviates = _random_stream()
        followed_per_ms = max(arrivals_per_ms, _least_rate_per_ms(profile, policy))
        arrivals_ms = arrivals / followed_per_ms
        ratios, ranks = np.ones((largest, 1)), deviates
        if profile.latency_quantiles is not None:
            ratios = np.ascontiguousarray(profile.latency_quantiles.points[0][:largest])
            ranks = profile.latency_quantiles.ranks(deviates)
        responses_ms = np.full(_REQUESTS, np.nan)
        batch_sizes, first_requests, served = (np.empty(_REQUESTS, np.int64) for _ in range(3))
        answered, batches, arrived, end_ms = follow_requests(
            arrivals_ms,
            front.request_ms,
            front.batch_ms,
            np.array(policy.actions, np.int64),
            largest,
            np.inf if policy.max_wait_ms is None else float(policy.max_wait_ms),
            -1 if waiting_room is None else waiting_room,
            np.ascontiguousarray(profile.latency_ms[:largest]),
            ratios,
            ranks,
            _MAX_BACKLOG,
            responses_ms,
            batch_sizes,
            first_requests,
            served,
        )
        sizes = batch_sizes[:batches]
        if arrived < _REQUESTS:
            mean_size = float(sizes.mean()) if batches else 1.0
            stage = profile.bottleneck(1e3 * arrivals_per_ms, mean_size)
            name = "front (event loop)" if stage == "front" else "device"
            raise InfeasibleError(
                f"arrival rate {1e3 * arrivals_per_ms:g}/s: in batches of {mean_size:.3g}, which "
                f"the policy starts, the {name} serves at most {1e3 * answered / end_ms:.4g}/s"
            )
        # By arrival, as the refused are counted: they take no place in `served`.
        after = int(np.searchsorted(served[first_requests[:batches]], _WARM_UP))
        settled = responses_ms[_WARM_UP:]
        refused = int(np.count_nonzero(settled < 0))
        starts = max(batches - after, 1)
        counts = np.bincount(sizes[after:], minlength=largest + 1)
        self.size_probabilities: FloatArray = counts / starts
        self.served_per_start = float(self.size_probabilities @ np.arange(largest + 1))
        self.refused_per_start = refused / starts
        self.ms_per_start = (end_ms - float(arrivals_ms[_WARM_UP])) / starts
        self.ms_per_start *= followed_per_ms / arrivals_per_ms
        self.response_times = SampledResponseTimes(settled[settled >= 0])


def _least_rate_per_ms(profile: Profile, policy: BatchingPolicy) -> float:
    """Return a rate at which requests hardly ever meet, as at all lower ones.

    At lower ones, the times of arrivals are so large that floats do not resolve response times.
    """
    waits_ms = policy.max_wait_ms
    if waits_ms is None:
        if policy.control_limit > 1:
            return 0.0  # response times grow with the times between arrivals
        waits_ms = 0.0
    front_ms = 0.0 if profile.front is None else profile.front.ms_per_request(1)
    return _CHANCE_TO_MEET / (waits_ms + front_ms + float(profile.latency_ms[-1]))


def _check_front(front: FrontCosts, arrivals_per_ms: float, largest: int) -> None:
    least_ms = front.ms_per_request(largest)
    if arrivals_per_ms * least_ms >= 1:
        raise InfeasibleError(
            f"arrival rate {1e3 * arrivals_per_ms:g}/s: the front (event loop) serves at most "
            f"{1e3 / least_ms:.4g}/s, in batches of {largest}"
        )


@lru_cache(maxsize=1)
def _random_stream() -> tuple[FloatArray, FloatArray]:
    """Return arrival times at the rate 1, and one standard normal variable per batch."""
    generator = np.random.default_rng(_SEED)
    arrivals = np.cumsum(generator.standard_exponential(_REQUESTS))
    # The rate is exact, and only the order of lulls and rushes is left to chance.
    arrivals *= (_REQUESTS - _WARM_UP) / (arrivals[-1] - arrivals[_WARM_UP])
    return arrivals, generator.standard_normal(_REQUESTS)
