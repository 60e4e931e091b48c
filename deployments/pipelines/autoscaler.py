"""Scale the stages of a running pipeline together, from its offered load."""

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from deployments.pipelines.pipeline import Pipeline

if TYPE_CHECKING:
    from deployments.pipelines.planning.scaling import StageScaler

logger = logging.getLogger("sojourn.pipelines")

#: Interval of load measurements.
PERIOD_S = 1.0
#: The measured items per request are averaged over about this many requests.
_RATIO_REQUESTS = 200.0


class PipelineAutoscaler:
    """Resizes the stages of a started pipeline once a second, as its `StageScaler` decides.

    Ray resizes the stages whose workers are Ray replicas, by `replica_needs`. `workers` holds the
    last ordered number of workers or, for a stage with Ray replicas, the required number.
    `items_per_request` is measured.
    """

    def __init__(self, pipeline: Pipeline, scaler: "StageScaler") -> None:
        self._pipeline, self.scaler = pipeline, scaler
        core = pipeline.core
        self._offered, self._admitted = core.offered, core.admitted
        self._items = [stage.items for stage in core.stages]
        self._measured_s = time.monotonic()
        self.workers = {stage.name: stage.workers for stage in pipeline.stages}
        self.items_per_request: dict[str, float] = {}

    def step(self, now_s: float) -> None:
        """Measure the load since the last step, and resize stages if necessary."""
        total = self._pipeline.core.offered
        offered, self._offered = total - self._offered, total
        elapsed_s, self._measured_s = now_s - self._measured_s, now_s
        self._measure_ratios()
        decision = self.scaler.decide(now_s, offered / elapsed_s, self.items_per_request)
        for stage, workers in decision.items():
            if workers != self.workers[stage]:
                logger.info("stage %s: %d workers", stage, workers)
                if stage not in self._pipeline.replicas:
                    self._pipeline.resize(stage, workers)
                self.workers[stage] = workers

    def _measure_ratios(self) -> None:
        """Update the mean number of items per request at each stage."""
        core = self._pipeline.core
        admitted, self._admitted = core.admitted - self._admitted, core.admitted
        if not admitted:
            return
        weight = admitted / (admitted + _RATIO_REQUESTS)
        for number, stage in enumerate(core.stages):
            items, self._items[number] = stage.items - self._items[number], stage.items
            known = self.items_per_request.get(stage.name)
            ratio = items / admitted
            self.items_per_request[stage.name] = (
                ratio if known is None else known + weight * (ratio - known)
            )

    def replica_needs(self) -> dict[str, float]:
        """Return the fractional number of replicas that the load needs, by stage.

        The pipeline's own replicas have the key "".
        """
        needs = {stage: self.scaler.replicas(stage) for stage in self._pipeline.replicas}
        return {"": self.scaler.pipeline_replicas(), **needs}

    async def run(self) -> None:
        """Step once a second, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            try:
                self.step(time.monotonic())
            except Exception:
                logger.exception("the stages could not be scaled; trying again")
