"""The what-if questions of a pipeline's console."""

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import Field

from deployments.config.validation import StrictModel, validate
from deployments.console.planner import Call
from deployments.pipelines.core.steps import Stage
from deployments.pipelines.serving.config import PipelineConfig


class PipelineScenario(StrictModel):
    """An SLA and a load."""

    response_time_ms: float = Field(gt=0, le=1e7)
    percentile: float = Field(gt=1, lt=100)
    #: Requests per second.
    arrival_rate_per_s: float = Field(gt=0, le=1e7)
    #: The workers must carry the load times this factor.
    margin: float = Field(default=1.0, ge=1, le=1e3)


class PipelineQuestion(StrictModel):
    """The present scenario and an alternative."""

    now: PipelineScenario
    then: PipelineScenario
    #: Name of the pipeline; it is the only one.
    model: str | None = None


class PipelinePlanning:
    """Plans the workers of a pipeline with its current profiles.

    Parameters
    ----------
    config : PipelineConfig
    stages : callable
        Returns the stages with their current profiles.
    """

    def __init__(self, config: PipelineConfig, stages: Callable[[], Sequence[Stage]]) -> None:
        self._steps = config.model_dump(mode="json", include={"steps"}, exclude_unset=True)["steps"]
        self._costs = config.worker_costs()
        self._stages = stages

    def calls(self, content: Any) -> dict[str, Call]:
        """Return the planning calls of both scenarios."""
        question = validate(PipelineQuestion, content)
        profiles = {
            stage.name: stage.profile.to_dict()
            for stage in self._stages()
            if stage.profile is not None
        }
        return {
            name: (
                "deployments.pipelines.serving.pipeline_plan:plan",
                (self._steps, profiles, self._costs),
                scenario.model_dump(),
            )
            for name, scenario in (("now", question.now), ("then", question.then))
        }
