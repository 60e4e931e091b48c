"""Any batching policy, followed on a sample of arrivals: response times with their standard errors.

A device alone is followed on many short paths. Where the queue is long it stays so for a long time,
so that one path of any bearable length visits long queues by chance. The paths begin instead at
queue lengths spread evenly over their stationary distribution, which is exact (`start_lengths`),
and half of them at the longest tenth. Only the ages of the requests that wait are not known there:
their timers have run off, and some batches pass before requests are counted.

An event loop beside the device (`policy.event_loop`) makes for a second queue, whose lengths are
not known. Both are followed on one long path. Small batches make the event loop busier; its busy
periods delay a request and its answer; and it hands requests on at even intervals: so its times and
the device's cannot be taken as independent (docs/policy.md).

The draws are the same at every call, scaled to the rate: equal arguments give equal results, and
policies are compared on the same arrivals.
"""

from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError
from policy.event_loop import EventLoopCosts
from policy.latency_quantiles import LatencyQuantiles
from policy.profile import Profile
from policy.response_time.start_lengths import StartLengthChain, StartLengths

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: Requests whose response times are sampled, about.
_REQUESTS = 200_000
# The paths of a device alone, in groups for the standard errors. Each group is a sample of its own.
_PATHS, _GROUPS = 8192, 16
_LONG_QUEUES = 0.9
"""Half of the paths begin at queue lengths beyond this quantile."""
_COARSE = 0.125
"""The part of the sample that a search follows."""
# The steps of all paths together until their first requests are served, about, and the fewest paths
# that this leaves.
_MAX_STEPS, _MIN_PATHS = 2_000_000, 512
# Beyond this load a queue is too long to be followed.
_MAX_LOAD = 0.9999
# Starts before a path's window, where a max wait makes the ages of requests matter.
_WARM_UP_STARTS = 4
# The path of an event loop and a device: arrivals before the window, and in it.
_WARM_UP, _IN_WINDOW = 20_000, 380_000
_DRAWS, _BLOCK = 1 << 20, 1 << 16
_SEED = 20220901
# The times of the first batches of the paths are spread evenly as well (Kronecker's sequence).
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83)
_STEPS = np.sqrt(_PRIMES) % 1.0
_RANKS = 1 << 14
# Requests that come this rarely, per time that one takes, are taken as alone.
_CHANCE_TO_MEET = 1e-5
# Points that stand for the times of a batch in the chain of queue lengths, of those of a profile.
_EVERY_POINT = 80


class Sample:
    """A batching policy on a sample of arrivals.

    Parameters
    ----------
    profile : Profile
        Without an event loop, or with one beside the device.
    policy : BatchingPolicy
        The max wait counts from a request's arrival at the event loop.
    max_queue_rows : int or None
        Requests that may wait for the device. The event loop reads those refused, too.
    rules : ndarray of float, shape (rules, 3)
        A request that arrives while a batch runs is also refused unless that batch, and full
        batches (of the second, a size, and the third, a time) for it and those ahead of it, end
        within the first, a time.
    coarse : bool
        Follow an eighth of the requests: for searches.

    `InfeasibleError`: event loop and device do not keep up with the arrivals, or hardly so.
    """

    def __init__(
        self,
        profile: Profile,
        policy: BatchingPolicy,
        arrivals_per_ms: float,
        max_queue_rows: int | None,
        rules: FloatArray,
        coarse: bool,
    ) -> None:
        self._profile, self._policy = profile, policy
        self._arrivals_per_ms = max(arrivals_per_ms, _least_rate_per_ms(profile, policy))
        self._max_queue_rows = max_queue_rows
        self._rules = rules
        self._event_loop = profile.event_loop or EventLoopCosts(0.0, 0.0, shares_cpu=False)
        self._part = _COARSE if coarse else 1.0
        if profile.event_loop is None and self._rules.size == 0:
            self._follow_many_paths()
        else:
            self._follow_one_path()
        self.ms_per_start = (self.served_per_start + self.refused_per_start) / arrivals_per_ms

    def _follow_one_path(self) -> None:
        largest = self._policy.max_batch_size
        least_ms = self._event_loop.ms_per_request(largest)
        if self._arrivals_per_ms * least_ms >= 1:
            raise InfeasibleError(
                f"arrival rate {1e3 * self._arrivals_per_ms:g}/s: the event loop serves at most "
                f"{1e3 / least_ms:.4g}/s, in batches of {largest}"
            )
        # A device that refuses by time forgets a queue soon.
        counted = _BLOCK if self._rules.size else int(self._part * _IN_WINDOW)
        window = np.array([0, _WARM_UP, 0, counted])
        self._follow(np.zeros(1, np.int64), np.ones(1), window, 2 * _IN_WINDOW)
        self._group_ends = np.linspace(0, self._responses_ms.size, _GROUPS + 1)[1:].astype(int)

    def _follow_many_paths(self) -> None:
        policy, profile = self._policy, self._profile
        times_ms, probabilities = _batch_times_ms(profile, policy.max_batch_size)
        size = policy.actions[-1]
        full_ms = float(times_ms[size - 1] @ probabilities)
        if self._max_queue_rows is None and self._arrivals_per_ms * full_ms > _MAX_LOAD * size:
            raise InfeasibleError(
                f"arrival rate {1e3 * self._arrivals_per_ms:g}/s: response times are not sampled "
                f"above {100 * _MAX_LOAD:g}% of the policy's {1e3 * size / full_ms:.6g}/s"
            )
        timed = policy.max_wait_ms is not None and policy.control_limit > 1
        lengths = len(policy.actions)
        waits = np.zeros((lengths, lengths))
        warm_up = 0
        chain = StartLengthChain(
            policy, self._arrivals_per_ms, times_ms, probabilities, self._max_queue_rows
        )
        if timed:
            # How long a wait for company lasts: first from paths that are nearly right.
            warm_up = _WARM_UP_STARTS
            self._spread(chain.solve(waits), times_ms @ probabilities, warm_up, self._part / 4)
            waits = self._waits
        self._spread(chain.solve(waits), times_ms @ probabilities, warm_up, self._part)

    def _spread(
        self, found: StartLengths, mean_times_ms: FloatArray, warm_up: int, part: float
    ) -> None:
        """Follow paths that begin at queue lengths spread over their distribution."""
        policy = self._policy
        typical = found.quantiles(np.array([0.5, 0.97]))
        steps = 5 + warm_up + float(typical.mean()) / policy.actions[-1]
        paths = int(max(_MIN_PATHS, part * min(_PATHS, _MAX_STEPS / steps))) // (2 * _GROUPS)
        paths *= 2 * _GROUPS
        spread = (np.arange(paths // 2) + 0.5) / (paths // 2)
        levels = np.stack(
            [_LONG_QUEUES * spread, _LONG_QUEUES + (1 - _LONG_QUEUES) * spread], axis=1
        )
        weights = np.broadcast_to([2 * _LONG_QUEUES, 2 * (1 - _LONG_QUEUES)], levels.shape)
        # Group by group, each with every `_GROUPS`th.
        order = np.arange(paths // 2).reshape(-1, _GROUPS).T.ravel()
        lengths = found.quantiles(levels[order].ravel())
        sizes = np.array([*policy.actions, *range(len(policy.actions), policy.max_batch_size + 1)])
        started = sizes[np.minimum(lengths, sizes.size - 1)]
        started = np.where(started, started, np.minimum(lengths, policy.max_batch_size))
        weights = weights[order].ravel()
        longest = self._arrivals_per_ms * float(mean_times_ms[started - 1] @ weights) / paths
        mean = max(float(started @ weights) / paths, longest)
        count = max(3 if warm_up else 1, round(part * _REQUESTS / (paths * mean)))
        window = np.array([warm_up, 0, count, 0])
        expected = int(2 * count * paths * (mean + 3 * np.sqrt(mean) + 3))
        self._follow(lengths, weights, window, expected)
        self._group_ends = self._path_ends[paths // _GROUPS - 1 :: paths // _GROUPS]

    def _follow(
        self, lengths: IntArray, weights: FloatArray, window: IntArray, capacity: int
    ) -> None:
        # Loading numba takes a third of a second, and most profiles do not need it.
        from policy.response_time.sample_kernel import follow_requests

        profile, policy = self._profile, self._policy
        largest, paths = policy.max_batch_size, lengths.size
        gaps, uniforms = _random_draws()
        ratios = np.ones((largest, 1))
        if profile.latency_quantiles is not None:
            ratios = np.ascontiguousarray(profile.latency_quantiles.points[0][:largest])
        responses_ms = np.empty(capacity)
        ends, refused = np.zeros(paths, np.int64), np.zeros(paths, np.int64)
        batches = np.zeros((paths, largest + 1), np.int64)
        self._waits = np.zeros((len(policy.actions), len(policy.actions)))
        followed, keeps_up = follow_requests(
            gaps,
            uniforms,
            _STEPS,
            _ranks(),
            self._arrivals_per_ms,
            lengths,
            weights,
            (np.arange(paths) * 0x9E3779B1) % _DRAWS,
            window,
            self._event_loop.request_ms,
            self._event_loop.batch_ms,
            np.array(policy.actions, np.int64),
            largest,
            np.inf if policy.max_wait_ms is None else float(policy.max_wait_ms),
            -1 if self._max_queue_rows is None else self._max_queue_rows,
            self._rules,
            np.ascontiguousarray(profile.latency_ms[:largest]),
            ratios,
            responses_ms,
            ends,
            refused,
            batches,
            self._waits,
        )
        if not keeps_up:
            self._refuse_load(batches)
        weights = np.where(np.arange(paths) < followed, weights, 0.0)
        self._path_ends = np.minimum(np.maximum.accumulate(ends), ends.max())
        counts = weights @ batches
        starts = counts.sum()
        #: Fraction of the batches by their size, from 0 on.
        self.size_probabilities: FloatArray = counts / starts
        self.served_per_start = float(self.size_probabilities @ np.arange(largest + 1))
        self.refused_per_start = float(weights @ refused / starts)
        self._responses_ms = responses_ms[: self._path_ends[-1]]
        self._weights = np.repeat(weights, np.diff(self._path_ends, prepend=0))
        self._total = float(self._weights.sum())
        self.mean_ms = float(self._weights @ self._responses_ms) / self._total

    def _refuse_load(self, batches: IntArray) -> None:
        starts = batches.sum()
        sizes = np.arange(batches.shape[1])
        mean_size = float(batches.sum(axis=0) @ sizes / starts) if starts else 1.0
        rate_per_s = 1e3 * self._arrivals_per_ms
        stage = self._profile.bottleneck(rate_per_s, mean_size)
        name = "event loop" if stage == "event_loop" else "device"
        raise InfeasibleError(
            f"arrival rate {rate_per_s:g}/s: in batches of {mean_size:.3g}, which the policy "
            f"starts, the {name} does not keep up"
        )

    @cached_property
    def _sorted(self) -> tuple[FloatArray, FloatArray]:
        """Response times, ascending, and the fraction of requests with at most each."""
        return _sorted_cdf(self._responses_ms, self._weights)

    def cdf(self, times_ms: FloatArray) -> FloatArray:
        if times_ms.size == 1 and "_sorted" not in self.__dict__:  # sorting takes ten times as long
            within = float(self._weights @ (self._responses_ms <= times_ms[0]))
            return np.array([min(within / self._total, 1.0)])
        responses_ms, cumulative = self._sorted
        places = np.searchsorted(responses_ms, times_ms, side="right")
        return np.where(places > 0, cumulative[places - 1], 0.0)

    def quantile(self, probability: float) -> float:
        """Return the least time in ms whose cdf reaches `probability`."""
        return _quantile(self._sorted, probability)

    def standard_error_ms(self, probability: float) -> float:
        """Return the standard error of `quantile`, from those of groups of the sample."""
        starts = [0, *self._group_ends[:-1]]
        quantiles = [
            _quantile(_sorted_cdf(self._responses_ms[a:b], self._weights[a:b]), probability)
            for a, b in zip(starts, self._group_ends, strict=True)
            if b > a
        ]
        return float(np.std(quantiles, ddof=1) / np.sqrt(len(quantiles)))


def _sorted_cdf(values: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    order = np.argsort(values)
    cumulative = np.cumsum(weights[order])
    return values[order], cumulative / cumulative[-1]


def _quantile(sorted_cdf: tuple[FloatArray, FloatArray], probability: float) -> float:
    values, cumulative = sorted_cdf
    return float(values[min(int(np.searchsorted(cumulative, probability)), values.size - 1)])


def _batch_times_ms(profile: Profile, largest: int) -> tuple[FloatArray, FloatArray]:
    """Return the times that batches take, shape (largest, points), and their probabilities."""
    latency_ms = profile.latency_ms[:largest, None]
    if profile.latency_quantiles is None:
        return latency_ms, np.ones(1)
    ratios, weights = profile.latency_quantiles.points
    weights = weights[::_EVERY_POINT]
    return latency_ms * ratios[:largest, ::_EVERY_POINT], weights / weights.sum()


@lru_cache(maxsize=1)
def _ranks() -> FloatArray:
    """Return the places of a normal variable's quantiles among a profile's points, ascending."""
    levels = (np.arange(_RANKS) + 0.5) / _RANKS
    return LatencyQuantiles.ranks(ndtri(levels))


def _least_rate_per_ms(profile: Profile, policy: BatchingPolicy) -> float:
    """Return a rate at which requests hardly ever meet, as at all lower ones.

    At lower ones, the times of arrivals are so large that floats do not resolve response times.
    """
    waits_ms = policy.max_wait_ms
    if waits_ms is None:
        if policy.control_limit > 1:
            return 0.0  # response times grow with the times between arrivals
        waits_ms = 0.0
    event_loop_ms = 0.0 if profile.event_loop is None else profile.event_loop.ms_per_request(1)
    return _CHANCE_TO_MEET / (waits_ms + event_loop_ms + float(profile.latency_ms[-1]))


@lru_cache(maxsize=1)
def _random_draws() -> tuple[FloatArray, FloatArray]:
    """Return times between arrivals at the rate 1, and numbers below 1."""
    generator = np.random.default_rng(_SEED)
    gaps = generator.standard_exponential(_DRAWS)
    # The rate is exact in each block; only the order of lulls and rushes is left to chance.
    blocks = gaps.reshape(-1, _BLOCK)
    return (blocks / blocks.mean(axis=1, keepdims=True)).ravel(), generator.random(_DRAWS)
