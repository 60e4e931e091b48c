"""Scale the stages of a running pipeline together, from its offered load."""

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from deployments.pipelines.pipeline import Pipeline

if TYPE_CHECKING:
    from deployments.pipelines.planning.scaling import StageScaler

logger = logging.getLogger("sojourn.pipelines")


class PipelineAutoscaler:
    """Resizes the stages of a started pipeline once a second, as its `StageScaler` decides.

    Ray resizes the stages whose workers are Ray replicas, by `replica_needs`.
    """

    def __init__(self, pipeline: Pipeline, scaler: "StageScaler") -> None:
        self._pipeline, self.scaler = pipeline, scaler
        self._ordered = {stage.name: stage.workers for stage in pipeline.stages}
        self._stepped_s = time.monotonic()

    def step(self, now_s: float) -> None:
        elapsed_s, self._stepped_s = now_s - self._stepped_s, now_s
        for stage, workers in self.scaler.decide(now_s, elapsed_s).items():
            if workers != self._ordered[stage]:
                logger.info("stage %s: %d workers", stage, workers)
                if stage not in self._pipeline.replicas:
                    self._pipeline.resize(stage, workers)
                self._ordered[stage] = workers

    def replica_needs(self) -> dict[str, float]:
        """Return the fractional number of replicas that the load needs, by stage.

        The pipeline's own replicas have the key "".
        """
        needs = {stage: self.scaler.replicas(stage) for stage in self._pipeline.replicas}
        return {"": self.scaler.pipeline_replicas(), **needs}

    async def run(self, period_s: float) -> None:
        while True:
            await asyncio.sleep(period_s)
            try:
                self.step(time.monotonic())
            except Exception:
                logger.exception("the stages could not be scaled; trying again")
