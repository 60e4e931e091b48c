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
from policy.event_loop import EventLoopCosts
from policy.profile import Profile
from policy.response_time.evaluation import evaluate

FloatArray = NDArray[np.float64]

logger = logging.getLogger("sojourn.policy")

PERCENTILES = (50.0, 95.0, 99.0)
#: Ticks between predictions.
PREDICT_EVERY = 5
#: A prediction that takes long is repeated only after this many times what it took: its thread
#: competes with the requests for the interpreter.
REST_FACTOR = 100
#: Fraction of the capacity above which nothing is predicted: it would take long and say little.
MAX_INTENSITY = 0.97


class ResponseTimePercentiles:
    """The percentiles `PERCENTILES` of the response time, keyed by percentile ("99").

    Measured ones are of the last tick that had answers. Predicted ones are for the arrival rate and
    the policy of the last prediction; empty if they cannot be predicted. Both have the delay in
    HAProxy. `predicted_power_w` is the device's, likewise; None if it cannot be predicted.
    """

    def __init__(self) -> None:
        self.measured_ms: dict[str, float] = {}
        self.predicted_ms: dict[str, float] = {}
        self.predicted_power_w: float | None = None
        self._ticks = 0
        self._predict_at = PREDICT_EVERY

    async def tick(
        self,
        response_times_s: Sequence[float] | FloatArray,
        profile: Callable[[], Profile],
        core: BatcherCore,
        proxy_delay_ms: float = 0.0,
    ) -> None:
        """Measure one tick's percentiles; predict new ones after `PREDICT_EVERY` ticks or more."""
        if len(response_times_s):
            quantiles_ms = 1e3 * np.percentile(response_times_s, PERCENTILES)
            self.measured_ms = _by_percentile(quantiles_ms.tolist())
        self._ticks += 1
        if self._ticks >= self._predict_at:
            values_ms, self.predicted_power_w, took_s = await _predict(profile(), core)
            self.predicted_ms = _by_percentile([ms + proxy_delay_ms for ms in values_ms])
            self._predict_at = self._ticks + max(PREDICT_EVERY, math.ceil(REST_FACTOR * took_s))


async def _predict(profile: Profile, core: BatcherCore) -> tuple[list[float], float | None, float]:
    """Return percentiles and power, none if that is not possible, and the CPU time taken in s."""
    now_s = time.monotonic()
    rate_per_s, policy = core.arrival_rate.per_s(now_s), core.policy(now_s)
    if not 0 < rate_per_s < MAX_INTENSITY * profile.capacity_per_s:
        return [], None, 0.0
    longest_wait_ms = core.longest_wait_ms(policy)
    if longest_wait_ms < (policy.max_wait_ms or math.inf):
        policy = replace(policy, max_wait_ms=longest_wait_ms)
    try:
        return await asyncio.to_thread(_evaluated, profile, policy, rate_per_s)
    except SojournError as error:
        logger.info("no prediction: %s", error)
        return [], None, 0.0


def _evaluated(
    profile: Profile, policy: BatchingPolicy, rate_per_s: float
) -> tuple[list[float], float | None, float]:
    began_s = time.thread_time()
    evaluation = evaluate(profile, policy, rate_per_s)
    predicted = evaluation.response_times
    values_ms = [predicted.quantile(percentile / 100) for percentile in PERCENTILES]
    return values_ms, evaluation.mean_power_w, time.thread_time() - began_s


def load_evaluation() -> None:
    """Load what predictions need.

    To load numba and its compiled code stops the other threads for up to a tenth of a second at a
    time, so it is better done before there are requests.
    """
    profile = Profile("", "", np.ones(1), event_loop=EventLoopCosts(0.0, 0.0, shares_cpu=False))
    evaluate(profile, BatchingPolicy.from_control_limit(1, 1), 1.0)


def _by_percentile(values_ms: Sequence[float]) -> dict[str, float]:
    return {f"{p:g}": ms for p, ms in zip(PERCENTILES, values_ms, strict=False)}
