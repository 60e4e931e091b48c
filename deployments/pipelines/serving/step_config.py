"""The steps of a pipeline in its config file."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from pydantic import Field, model_validator

from deployments.config.serve_schema import ActorOptions
from deployments.config.validation import StrictModel
from deployments.models.base import TensorSpec
from deployments.pipelines.core.steps import (
    MAX_ITEMS,
    Each,
    Ensemble,
    Place,
    Stage,
    Step,
    Switch,
    default_name,
)
from deployments.pipelines.workers.predictor import import_object
from policy.errors import InvalidInputError
from policy.profile import Profile


class TensorConfig(StrictModel):
    """One input or output of the pipeline."""

    #: Name of the tensor in requests and answers.
    name: str
    #: A datatype of the Open Inference Protocol, such as FP32 or BYTES.
    datatype: str
    #: Shape of one row. Empty: a number, or a text.
    shape: list[int] = Field(default_factory=list)

    @property
    def spec(self) -> TensorSpec:
        spec = TensorSpec(self.name, self.datatype, tuple(self.shape))
        if spec.is_variable:
            raise InvalidInputError(
                f"tensor {self.name}: a pipeline's tensors have fixed shapes, not {self.shape}"
            )
        return spec


class ExpertStageConfig(StrictModel):
    """Rarely needed settings of a stage."""

    #: One worker, a process or thread, for each entry, pinned to that CPU; instead of `workers`.
    cpus: list[int] | None = None
    #: A worker that takes longer than this for one batch is killed and replaced.
    hang_after_s: float = 30.0
    #: Cost of one worker, for `sojourn pipeline plan`.
    cost: float = Field(default=1.0, gt=0, allow_inf_nan=False)


class StageConfig(StrictModel):
    """Code with its own workers and batches."""

    code: str
    name: str = ""
    options: dict[str, Any] = Field(default_factory=dict)
    workers: int = 1
    place: Place = "process"
    batch_size: int | None = None
    max_wait_ms: float = 0.0
    policy: Literal["smdp"] | None = None
    #: A profile file or its content.
    profile: str | dict[str, Any] | None = None
    device: Literal["cpu", "cuda"] = "cpu"
    weights: str | None = None
    share: bool = False
    #: With `place: deployment`: the most replicas, if they follow the load; `workers` is the least.
    max_workers: int | None = Field(default=None, ge=1)
    #: With `place: deployment`: the resources of each replica, as Ray Serve takes them.
    ray_actor_options: ActorOptions | None = None
    #: Settings that rarely need a change.
    expert: ExpertStageConfig = ExpertStageConfig()

    @model_validator(mode="after")
    def _deployment(self) -> "StageConfig":
        if self.place == "deployment":
            if self.max_workers is not None and self.max_workers < self.workers:
                raise ValueError(f"max_workers must be at least workers, which is {self.workers}")
        elif self.max_workers is not None or self.ray_actor_options is not None:
            raise ValueError("max_workers and ray_actor_options need place deployment")
        return self

    @property
    def stage_name(self) -> str:
        return self.name or default_name(self.code)

    def build(self) -> Stage:
        values = self.model_dump(exclude={"profile", "expert", "max_workers", "ray_actor_options"})
        values |= self.expert.model_dump(exclude={"cost"})
        if isinstance(self.profile, str):
            values["profile"] = Profile.load(self.profile)
        elif self.profile is not None:
            values["profile"] = Profile.from_dict(self.profile)
        return Stage(**values)


class EnsembleConfig(StrictModel):
    """Branches that each item passes, and how their results are joined."""

    #: Lists of steps.
    branches: list[list["StepConfig"]]
    #: A function from the list of the branches' results to the result. None: the list itself.
    join: str | None = None


class ExpertSwitchConfig(StrictModel):
    """The shares of a switch's branches."""

    #: For planning: the percentage of the items that takes each branch, above 0. By default all the
    #: same.
    percentages: dict[str | int | bool, float] | None = None


class SwitchConfig(StrictModel):
    """Branches of which each item passes one."""

    #: A function from an item to the key of its branch.
    choose: str
    #: Lists of steps by key; an empty one passes the item on.
    branches: dict[str | int | bool, list["StepConfig"]]
    #: Settings that rarely need a change.
    expert: ExpertSwitchConfig = ExpertSwitchConfig()


class ExpertEachConfig(StrictModel):
    """The number of elements of an item."""

    #: An item with more elements fails.
    max_items: int = MAX_ITEMS
    #: For planning: how many elements an item has.
    expected_items: int = 1


class EachConfig(StrictModel):
    """A branch that each element of an item passes, and how the results are joined."""

    #: The steps that each element passes.
    branch: list["StepConfig"]
    #: A function from the list of the elements' results to the result. None: the list itself.
    join: str | None = None
    #: Settings that rarely need a change.
    expert: ExpertEachConfig = ExpertEachConfig()


class StepConfig(StrictModel):
    """One step: exactly one of the keys."""

    #: Code with its own workers and batches.
    stage: StageConfig | None = None
    #: Several branches at the same time.
    ensemble: EnsembleConfig | None = None
    #: One of several branches.
    switch: SwitchConfig | None = None
    #: The same branch for each element.
    each: EachConfig | None = None

    @model_validator(mode="after")
    def _one(self) -> "StepConfig":
        if len(self.model_fields_set) != 1:
            raise ValueError("a step is one of stage, ensemble, switch and each")
        return self

    def stages(self) -> list[StageConfig]:
        branches = [
            *(self.ensemble.branches if self.ensemble else ()),
            *(self.switch.branches.values() if self.switch else ()),
            *([self.each.branch] if self.each else ()),
        ]
        inside = [stage for branch in branches for step in branch for stage in step.stages()]
        return inside if self.stage is None else [self.stage]

    def build(self) -> Step:
        if self.stage is not None:
            return self.stage.build()

        def join(path: str | None) -> Callable[..., Any]:
            return list if path is None else import_function(path)

        if self.ensemble is not None:
            branches = [build_steps(branch) for branch in self.ensemble.branches]
            return Ensemble(branches, join(self.ensemble.join))
        if self.switch is not None:
            keyed = {key: build_steps(steps) for key, steps in self.switch.branches.items()}
            percentages = self.switch.expert.percentages
            shares = percentages and {key: part / 100 for key, part in percentages.items()}
            return Switch(import_function(self.switch.choose), keyed, shares)
        assert self.each is not None
        each = self.each
        branch = build_steps(each.branch)
        return Each(branch, join(each.join), each.expert.max_items, each.expert.expected_items)


def build_steps(steps: Sequence[StepConfig]) -> list[Step]:
    return [step.build() for step in steps]


def import_function(path: str) -> Callable[..., Any]:
    """Return the function at a path ``package.module:name``, or raise `InvalidInputError`."""
    found = import_object(path)
    if not callable(found):
        raise InvalidInputError(f"{path!r}: is not callable")
    return found  # type: ignore[no-any-return]
