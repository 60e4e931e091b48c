"""The response time of a whole pipeline from the exact distributions of its stages.

`policy.response_time` has the distribution of one device under Poisson arrivals. Here each stage is
taken to have Poisson arrivals, independent of what its items met before: times in sequence are
convolved, those of an ensemble's branches multiplied. Items that one request splits into arrive
together, which a Poisson stream does not; and workers that share a queue are taken as each having
a random share of the arrivals, which is worse than what they do.

This takes a millisecond for a plan, so a search can afford it; docs/pipelines.md says how far it is
from the simulation of `deployments.pipelines.planning.tandem`.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from deployments.pipelines.planning.tandem import Settings, profile_of
from deployments.pipelines.steps import Each, Ensemble, Stage, Step, Switch
from policy.batching_policy import BatchingPolicy
from policy.profile import Profile
from policy.response_time.evaluation import Evaluation, evaluate

FloatArray = NDArray[np.float64]

_POINTS = 4096
# The grid of times ends at this many times the response time that is asked about.
_REACH = 4.0


class Times:
    """A grid of times on which distributions are held: entry ``k`` is at ``k`` steps.

    Parameters
    ----------
    about_ms : float
        The response time that matters; the grid reaches further.
    """

    def __init__(self, about_ms: float) -> None:
        self.step_ms = _REACH * about_ms / _POINTS
        self.ms = self.step_ms * np.arange(_POINTS)

    def percentile_ms(self, cdf: FloatArray, percentile: float) -> float:
        """Return the percentile of a distribution; infinity if it lies beyond the grid."""
        if cdf[-1] < percentile / 100:
            return np.inf
        at = int(np.argmax(cdf >= percentile / 100))
        if at == 0:
            return 0.0
        below, above = cdf[at - 1], cdf[at]
        return float(self.ms[at - 1] + self.step_ms * (percentile / 100 - below) / (above - below))

    def convolve(self, first: FloatArray, second: FloatArray) -> FloatArray:
        """Return the cdf of the sum of two independent times with these cdfs.

        A time between two points counts half at each, so that sums keep their mean; what takes no
        time at all, as an empty branch, stays at 0.
        """
        between = np.diff(first)
        mass = (np.append(0.0, between) + np.append(between, 0.0)) / 2
        mass[0] += first[0]
        size = 2 * _POINTS
        product = np.fft.irfft(np.fft.rfft(mass, size) * np.fft.rfft(second, size), size)
        return np.clip(product[:_POINTS], 0.0, 1.0)


@lru_cache(maxsize=512)
def stage_evaluation(
    profile: Profile, policy: BatchingPolicy, arrival_rate_per_s: float
) -> Evaluation:
    """Return the evaluation of one worker; the latest ones are remembered."""
    return evaluate(profile, policy, arrival_rate_per_s)


def response_cdf(
    steps: Sequence[Step], settings: Settings, arrival_rate_per_s: float, times: Times
) -> FloatArray:
    """Return the cdf of the response time of a pipeline, on the grid of `times`.

    Parameters
    ----------
    steps : sequence of steps
    settings : mapping of str to Setting
    arrival_rate_per_s : float
        Requests per second.
    times : Times

    Raises
    ------
    InvalidInputError
        A stage has no profile.
    InfeasibleError
        A stage cannot keep up.
    """
    return _cdf(list(steps), settings, arrival_rate_per_s, times)


def stage_cdf(
    stage: Stage, settings: Settings, arrival_rate_per_s: float, times: Times
) -> FloatArray:
    """Return the cdf of the response time of one stage, on the grid of `times`."""
    setting = settings[stage.name]
    evaluation = stage_evaluation(
        profile_of(stage), setting.policy, arrival_rate_per_s / setting.workers
    )
    return evaluation.cdf(times.ms)


def _cdf(
    step: "Step | Sequence[Step]", settings: Settings, rate_per_s: float, times: Times
) -> FloatArray:
    if isinstance(step, Stage):
        return stage_cdf(step, settings, rate_per_s, times)
    if isinstance(step, Ensemble):
        branches = [_cdf(branch, settings, rate_per_s, times) for branch in step.branches]
        return np.asarray(np.prod(branches, axis=0))
    if isinstance(step, Each):
        items = step.expected_items
        return np.asarray(_cdf(step.branch, settings, rate_per_s * items, times) ** items)
    if isinstance(step, Switch):
        mixture = np.zeros(_POINTS)
        for key, share in step.expected_shares.items():
            mixture += share * _cdf(step.branches[key], settings, rate_per_s * share, times)
        return mixture
    parts = [_cdf(part, settings, rate_per_s, times) for part in step]
    if not parts:
        return np.ones(_POINTS)
    total = parts[0]
    for part in parts[1:]:
        total = times.convolve(total, part)
    return total
