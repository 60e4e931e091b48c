"""Scale the stages of a running pipeline together, from the load at its front."""

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from pipelines.pipeline import Pipeline

if TYPE_CHECKING:
    from pipelines.planning.scaling import StageScaler

logger = logging.getLogger("sojourn.pipelines")

#: How often the load is measured.
PERIOD_S = 1.0


class PipelineAutoscaler:
    """Resizes the stages of a pipeline once a second, as a `StageScaler` decides.

    Parameters
    ----------
    pipeline : Pipeline
        It must have been started.
    scaler : StageScaler

    Attributes
    ----------
    workers : dict of str to int
        The workers that were last ordered.
    """

    def __init__(self, pipeline: Pipeline, scaler: "StageScaler") -> None:
        self._pipeline, self._scaler = pipeline, scaler
        self._offered = pipeline.core.offered
        self._measured_s = time.monotonic()
        self.workers = {stage.name: stage.workers for stage in pipeline.stages}

    def step(self, now_s: float) -> None:
        """Measure the load since the last step, and resize the stages that need it."""
        total = self._pipeline.core.offered
        offered, self._offered = total - self._offered, total
        elapsed_s, self._measured_s = now_s - self._measured_s, now_s
        for stage, workers in self._scaler.decide(now_s, offered / elapsed_s).items():
            if workers != self.workers[stage]:
                logger.info("stage %s: %d workers", stage, workers)
                self._pipeline.resize(stage, workers)
                self.workers[stage] = workers

    async def run(self) -> None:
        """Step once a second, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            self.step(time.monotonic())
