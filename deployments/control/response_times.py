"""Response-time percentiles of a replica: measured, and as its model predicts them."""

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from deployments.batcher.core import BatcherCore
from policy.batching_policy import BatchingPolicy
from policy.errors import SojournError
from policy.profile import Profile
from policy.response_time.evaluation import evaluate

logger = logging.getLogger("sojourn.policy")

PERCENTILES = (50.0, 95.0, 99.0)
#: Ticks between predictions.
PREDICT_EVERY = 5
#: Fraction of the capacity above which nothing is predicted: it would take long and say little.
MAX_INTENSITY = 0.97


class ResponseTimePercentiles:
    """The percentiles `PERCENTILES` of the response time, keyed by percentile ("99").

    Attributes
    ----------
    measured_ms : dict of str to float
        Of the last tick that had answers.
    predicted_ms : dict of str to float
        At the observed arrival rate, under the policy in force; empty if they cannot be predicted.
    """

    def __init__(self) -> None:
        self.measured_ms: dict[str, float] = {}
        self.predicted_ms: dict[str, float] = {}
        self._ticks = 0

    async def tick(
        self, response_times_s: Sequence[float], profile: Profile, core: BatcherCore
    ) -> None:
        """Measure one tick's percentiles, and predict new ones every `PREDICT_EVERY` ticks."""
        if response_times_s:
            quantiles_ms = 1e3 * np.percentile(np.array(response_times_s), PERCENTILES)
            self.measured_ms = _by_percentile(quantiles_ms.tolist())
        self._ticks += 1
        if self._ticks % PREDICT_EVERY == 0:
            await self._predict(profile, core)

    async def _predict(self, profile: Profile, core: BatcherCore) -> None:
        self.predicted_ms = {}
        now_s = time.monotonic()
        rate_per_s, policy = core.arrival_rate.per_s(now_s), core.policy(now_s)
        # Control limits take milliseconds to evaluate. Any other policy takes up to a second, in
        # which a thread would compete with the requests for the interpreter.
        limit = BatchingPolicy.from_control_limit(policy.control_limit, policy.max_batch_size)
        if policy.actions != limit.actions:
            return
        if not 0 < rate_per_s < MAX_INTENSITY * profile.capacity_per_s:
            return
        longest_wait_ms = core.longest_wait_ms(policy)
        if longest_wait_ms < (policy.max_wait_ms or math.inf):
            policy = replace(policy, max_wait_ms=longest_wait_ms)
        try:
            predicted = await asyncio.to_thread(evaluate, profile, policy, rate_per_s)
            self.predicted_ms = _by_percentile(
                [predicted.response_percentile_ms(p) for p in PERCENTILES]
            )
        except SojournError as error:
            logger.info("no prediction: %s", error)


def _by_percentile(values_ms: Sequence[float]) -> dict[str, float]:
    return {f"{p:g}": ms for p, ms in zip(PERCENTILES, values_ms, strict=True)}
