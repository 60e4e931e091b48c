"""Response-time percentiles of a replica: measured, and as its model predicts them."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from policy.batcher.core import BatcherCore
from policy.batching_policy import BatchingPolicy
from policy.errors import SojournError
from policy.front import FrontCosts
from policy.profile import Profile
from policy.response_time.distribution import ResponseTimeDistribution
from policy.response_time.evaluation import evaluate

FloatArray = NDArray[np.float64]

logger = logging.getLogger("sojourn.policy")

PERCENTILES = (50.0, 95.0, 99.0)
#: Ticks between predictions.
PREDICT_EVERY = 5
#: A prediction that takes long is repeated only after this many times what it took: its thread
#: competes with the requests for the interpreter.
REST_FACTOR = 100
#: Policies that are no control limits take up to a second to evaluate where batches are larger.
MAX_TABLE_BATCH = 64
#: Ticks after which a comparison of measured with predicted percentiles counts for 1/e, and least
#: number of answers of a tick that is compared.
_COMPARISON_TICKS, _MIN_COMPARED = 10, 100
#: A prediction holds while what is measured is within this factor of it.
HOLDS_WITHIN = 1.25
#: Fraction of the capacity above which nothing is predicted: it would take long and say little.
MAX_INTENSITY = 0.97


class ResponseTimePercentiles:
    """The percentiles `PERCENTILES` of the response time, keyed by percentile ("99").

    Attributes
    ----------
    measured_ms : dict of str to float
        Of the last tick that had answers, with the delay in HAProxy.
    predicted_ms : dict of str to float
        At the arrival rate observed at the last prediction, under the policy then in force; empty
        if they cannot be predicted. With the delay in HAProxy that was observed then.
    measured_over_predicted : dict of str to float
        How many times what was predicted has been measured, over the last ticks; empty if nothing
        was predicted.
    """

    def __init__(self) -> None:
        self.measured_ms: dict[str, float] = {}
        self.predicted_ms: dict[str, float] = {}
        self.measured_over_predicted: dict[str, float] = {}
        self._predictable = True
        self._ticks = 0
        self._predict_at = PREDICT_EVERY

    async def tick(
        self,
        response_times_s: Sequence[float] | FloatArray,
        profile: Callable[[], Profile],
        core: BatcherCore,
        proxy_delay_ms: float = 0.0,
    ) -> None:
        """Measure one tick's percentiles; predict new ones after `PREDICT_EVERY` ticks or more.

        Parameters
        ----------
        response_times_s : sequence or ndarray of float, shape (requests,)
            Of the requests answered in this tick.
        profile : callable
            Returns the model to predict by.
        core : BatcherCore
        proxy_delay_ms : float
            What requests wait in HAProxy: part of the response times, and so of the prediction.
        """
        if len(response_times_s):
            quantiles_ms = 1e3 * np.percentile(response_times_s, PERCENTILES)
            self.measured_ms = _by_percentile(quantiles_ms.tolist())
            if len(response_times_s) >= _MIN_COMPARED:
                self._compare()
        self._ticks += 1
        if self._ticks >= self._predict_at:
            took_s = await self._predict(profile(), core, proxy_delay_ms)
            self._predict_at = self._ticks + max(PREDICT_EVERY, math.ceil(REST_FACTOR * took_s))

    @property
    def holds(self) -> bool:
        """Whether what is measured is near what is predicted; no, if nothing can be predicted."""
        return self._predictable and all(
            1 / HOLDS_WITHIN <= ratio <= HOLDS_WITHIN
            for ratio in self.measured_over_predicted.values()
        )

    def _compare(self) -> None:
        """Compare what was measured in a tick with the prediction in force."""
        keep = math.exp(-1 / _COMPARISON_TICKS)
        before, self.measured_over_predicted = self.measured_over_predicted, {}
        for percentile, ms in self.predicted_ms.items():
            ratio = self.measured_ms[percentile] / ms
            known = before.get(percentile, ratio)
            self.measured_over_predicted[percentile] = known**keep * ratio ** (1 - keep)

    async def _predict(self, profile: Profile, core: BatcherCore, proxy_delay_ms: float) -> float:
        """Predict percentiles if that is possible; return the CPU time that it took, in seconds."""
        now_s = time.monotonic()
        rate_per_s, policy = core.arrival_rate.per_s(now_s), core.policy(now_s)
        limit = BatchingPolicy.from_control_limit(policy.control_limit, policy.max_batch_size)
        if not rate_per_s > 0:
            self._put(predictable=True)  # there is nothing to predict
            return 0.0
        if policy.actions != limit.actions and policy.max_batch_size > MAX_TABLE_BATCH:
            self._put(predictable=False)
            return 0.0
        longest_wait_ms = core.longest_wait_ms(policy)
        if longest_wait_ms < (policy.max_wait_ms or math.inf):
            policy = replace(policy, max_wait_ms=longest_wait_ms)
        try:
            values_ms, took_s = await asyncio.to_thread(
                _percentiles_ms, profile, policy, rate_per_s
            )
        except SojournError as error:
            logger.info("no prediction: %s", error)
            self._put(predictable=False)
            return 0.0
        if values_ms is None:
            self._put(predictable=False)
        else:
            self._put([ms + proxy_delay_ms for ms in values_ms], predictable=True)
        return took_s

    def _put(self, values_ms: list[float] | None = None, *, predictable: bool) -> None:
        """Put a prediction in force, or that there is none."""
        self.predicted_ms = {} if values_ms is None else _by_percentile(values_ms)
        self._predictable = predictable


def _percentiles_ms(
    profile: Profile, policy: BatchingPolicy, rate_per_s: float
) -> tuple[list[float] | None, float]:
    """Return the percentiles, and the CPU time that they took in seconds."""
    began_s = time.thread_time()
    if rate_per_s >= MAX_INTENSITY * profile.capacity_per_s:
        return None, time.thread_time() - began_s
    predicted = evaluate(profile, policy, rate_per_s).response_times
    return _quantiles_ms(predicted), time.thread_time() - began_s


def load_evaluation() -> None:
    """Load what predictions need.

    To load numba and its compiled code stops the other threads for up to a tenth of a second at a
    time, so it is better done before there are requests.
    """
    profile = Profile("", "", np.ones(1), front=FrontCosts(0.0, 0.0, shares_cpu=False))
    evaluate(profile, BatchingPolicy.from_control_limit(1, 1), 1.0)


def _quantiles_ms(distribution: ResponseTimeDistribution) -> list[float]:
    return [distribution.quantile(percentile / 100) for percentile in PERCENTILES]


def _by_percentile(values_ms: Sequence[float]) -> dict[str, float]:
    return {f"{p:g}": ms for p, ms in zip(PERCENTILES, values_ms, strict=True)}
