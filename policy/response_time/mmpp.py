r"""The response time of a control limit with a max wait, under MMPP(2) arrivals.

The state at the starts of batches is the queue length and the state of the arrival process. What
follows is as in `control_limit_chain` and `control_limit_response`, with the matrices
:math:`P_n(t)` of `policy.mmpp` in the place of Poisson probabilities. Exact up to quadrature, which
makes the cdf wrong by at most 1.5e-4 where both rates are equal and `evaluation` knows the answer.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError, InvalidInputError
from policy.mmpp import Mmpp
from policy.profile import Profile
from policy.response_time.distribution import ResponseTimeDistribution
from policy.response_time.mmpp_chain import MmppChain
from policy.response_time.mmpp_response import MmppResponse

# The longest queue is doubled until the probability of its last lengths is negligible.
_NEGLIGIBLE = 1e-9
# Longest queue at the start of a batch that is solved, and how often it may be longer.
_MAX_QUEUE, _MAX_TAIL = 1024, 1e-6


@dataclass(frozen=True, eq=False)
class MmppEvaluation:
    """What a control limit achieves under MMPP arrivals.

    Attributes
    ----------
    mean_batch_size : float
    mean_power_w : float or None
        None if the profile has no energy.
    device_busy_fraction : float
        Fraction of the time in which a batch is in service.
    full_probability : float
        Fraction of the requests that find the waiting room full; they are refused.
    response_times : ResponseTimeDistribution
    """

    mean_batch_size: float
    mean_power_w: float | None
    device_busy_fraction: float
    full_probability: float
    _chain: MmppChain

    @cached_property
    def response_times(self) -> ResponseTimeDistribution:
        """The distribution; computed on first use."""
        return MmppResponse(self._chain)

    def service_level(self, response_time_ms: float) -> float:
        """Return the fraction of the requests not refused that are answered within a time."""
        return float(self.response_times.cdf(np.array([response_time_ms]))[0])

    def response_percentile_ms(self, percentile: float) -> float:
        """Return the least time within which `percentile` percent of requests are answered."""
        return self.response_times.quantile(percentile / 100)


def evaluate_mmpp(
    profile: Profile, policy: BatchingPolicy, process: Mmpp, *, waiting_room: int | None = None
) -> MmppEvaluation:
    """Evaluate a control limit with a max wait under MMPP(2) arrivals.

    Parameters
    ----------
    profile : Profile
        Batch times, and energies if known.
    policy : BatchingPolicy
        A control limit that starts all that wait; above 1 it needs a max wait.
    process : Mmpp
        The arrivals.
    waiting_room : int, optional
        Requests that may wait, a multiple of the maximum batch size. Any number if not given.

    Raises
    ------
    InvalidInputError
        The policy is no such control limit, or starts larger batches than the profile has; the
        waiting room is no multiple of them.
    InfeasibleError
        The device cannot keep up, or bursts make the queue longer than is computed.
    """
    limit, size = policy.control_limit, policy.max_batch_size
    if policy.actions != BatchingPolicy.from_control_limit(limit, size).actions:
        raise InvalidInputError("policy: must be a control limit that starts all that wait")
    if limit > 1 and policy.max_wait_ms is None:
        raise InvalidInputError("policy: a control limit above 1 needs a max wait")
    if size > profile.max_batch_size:
        raise InvalidInputError(
            f"policy: starts batches of {size}, but the profile ends at {profile.max_batch_size}"
        )
    times = profile.latency_ms[:size]
    chain = _solve_chain(profile, policy, process, waiting_room)
    queue = chain.longest
    sizes = np.minimum(np.arange(1, queue + 1), size)
    by_size = np.bincount(sizes, chain.probabilities.sum(axis=1), size + 1)[1:]
    mean_size = float(by_size @ np.arange(1, size + 1))
    offered = mean_size + chain.refused_per_start
    ms_per_start = 1e3 * offered / process.mean_rate_per_s
    energy = profile.energy_mj
    return MmppEvaluation(
        mean_batch_size=mean_size,
        mean_power_w=None if energy is None else float(by_size @ energy[:size]) / ms_per_start,
        device_busy_fraction=float(by_size @ times) / ms_per_start,
        full_probability=chain.refused_per_start / offered,
        _chain=chain,
    )


def _solve_chain(
    profile: Profile, policy: BatchingPolicy, process: Mmpp, waiting_room: int | None
) -> MmppChain:
    limit, size = policy.control_limit, policy.max_batch_size
    times, wait_ms = profile.latency_ms[:size], policy.max_wait_ms or 0.0
    if waiting_room is not None:
        if waiting_room < 1 or waiting_room % size:
            raise InvalidInputError(
                f"waiting_room: must be a multiple of {size}, the largest batch, not {waiting_room}"
            )
        return MmppChain(process, times, limit, wait_ms, waiting_room)
    capacity_per_s = 1e3 * size / float(times[-1])
    if process.mean_rate_per_s >= capacity_per_s:
        raise InfeasibleError(
            f"arrival rate {process.mean_rate_per_s:g}/s: the policy serves at most "
            f"{capacity_per_s:.6g}/s"
        )
    queue = 4 * size
    while True:
        chain = MmppChain(process, times, limit, wait_ms, queue)
        tail = float(chain.probabilities[-size:].sum())
        if tail < _NEGLIGIBLE or queue >= _MAX_QUEUE:
            break
        queue *= 2
    if tail > _MAX_TAIL:
        raise InfeasibleError("bursts: the queue grows too long to be computed")
    return chain
