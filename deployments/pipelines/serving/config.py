"""The config file of a pipeline, in Ray Serve's schema, such as `configs/digits-pipeline.yaml`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from autoscaler.settings import AutoscalerSettings
from deployments.config.document import PIPELINE_IMPORT_PATH as IMPORT_PATH
from deployments.config.document import Application, find_applications
from deployments.config.replica_args import StoreConfig
from deployments.config.serve_schema import ActorOptions
from deployments.config.user_config import AccessConfig, SLAConfig, TracingConfig
from deployments.config.validation import StrictModel, fault, validate
from deployments.config.yaml_file import YamlFile
from deployments.pipelines.core.graph import compile_steps
from deployments.pipelines.core.steps import Step
from deployments.pipelines.pipeline import MAX_PENDING
from deployments.pipelines.serving.step_config import (
    StageConfig,
    StepConfig,
    TensorConfig,
    build_steps,
)

#: The autoscaling policy of the replicas of a pipeline and of its stages.
AUTOSCALING_POLICY = "deployments.pipelines.serving.ray_scaling:scale"
#: The deployment's name in the config file.
DEPLOYMENT = "PipelineReplica"


class AutoscalingConfig(StrictModel):
    """The workers of the stages follow the load; every stage needs a profile."""

    #: Of all stages in one replica together; those in deployments of their own are not counted.
    max_workers: int = Field(ge=1)
    #: Percent of the minutes that should comply with the SLA.
    compliant_minutes: float = Field(default=99.0, ge=50, le=99.99)
    #: How long fewer workers must have been enough before some end, in s. None: as long as a worker
    #: takes to start, but at most 20 s.
    scale_down_delay_s: float | None = Field(default=None, ge=0, le=1e6)
    #: Workers to keep in each stage beyond those that the load needs, or ``auto``: as many as pay.
    standbys: Literal["auto"] | Annotated[int, Field(ge=0)] = 0

    #: A sudden rise of the load by this factor is absorbed without new workers.
    burst_factor: float = Field(default=1.0, ge=1, le=1e3)

    def settings(self) -> AutoscalerSettings:
        return AutoscalerSettings(**self.model_dump(exclude={"max_workers"}))


class ExpertPipelineConfig(StrictModel):
    """Rarely needed settings of a pipeline."""

    #: Maximum number of items in the pipeline.
    max_pending: int = Field(default=MAX_PENDING, ge=1)
    #: The CPUs of the event loop: of queues, batching and stages on it. Workers stay elsewhere.
    cpus: list[int] | None = None


class PipelineConfig(StrictModel):
    """`args` of the application: the pipeline; a change replaces every replica."""

    #: Names the pipeline in paths (``/v2/models/NAME/infer``), logs and metrics.
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    #: Label of the version, which every answer carries.
    version: str = Field(default="1", pattern=r"^[A-Za-z0-9._-]+$")
    #: Tensors of an item.
    inputs: list[TensorConfig] = Field(min_length=1)
    #: Tensors of its result.
    outputs: list[TensorConfig] = Field(min_length=1)
    #: The steps that each item passes, in order.
    steps: list[StepConfig]
    #: A function that returns an example item.
    example: str | None = None
    #: None: stages that need a model store use the one that the user started.
    store: StoreConfig | None = None
    #: None: each stage keeps its number of workers.
    autoscaling: AutoscalingConfig | None = None
    #: Settings that rarely need a change.
    expert: ExpertPipelineConfig = ExpertPipelineConfig()

    def build(self) -> list[Step]:
        """Return the steps, checked as a whole, or raise `InvalidInputError`."""
        steps = build_steps(self.steps)
        compile_steps(steps)
        for tensor in (*self.inputs, *self.outputs):
            tensor.spec  # noqa: B018 - it raises if the tensor is wrong
        return steps

    def stages(self) -> dict[str, StageConfig]:
        return {stage.stage_name: stage for step in self.steps for stage in step.stages()}

    def worker_costs(self) -> dict[str, float]:
        return {name: stage.expert.cost for name, stage in self.stages().items()}

    def deployed(self) -> dict[str, StageConfig]:
        return {name: s for name, s in self.stages().items() if s.place == "deployment"}

    def max_replicas(self) -> dict[str, int]:
        return {name: stage.max_workers or stage.workers for name, stage in self.deployed().items()}


class PipelineLimitsConfig(StrictModel):
    """Limits of the requests that a pipeline accepts."""

    #: Handling of a request that cannot be answered within the SLA: "refuse" it at once, or "serve"
    #: it anyway.
    late: Literal["refuse", "serve"] = "refuse"
    #: Rows of one request.
    max_rows_per_request: int = Field(default=256, ge=1)
    #: Size of one request's body.
    max_body_bytes: int = Field(default=4 << 20, ge=1)


class PipelineUserConfig(StrictModel):
    """`user_config` of the deployment; a change takes effect without restarting a replica."""

    #: The SLA of the pipeline as a whole.
    sla: SLAConfig = SLAConfig()
    #: Limits of accepted requests.
    limits: PipelineLimitsConfig = PipelineLimitsConfig()
    #: The tokens that open the pipeline, and their scopes.
    access: AccessConfig = AccessConfig()
    #: None: no request is traced.
    tracing: TracingConfig | None = None


class PipelineFile(StrictModel):
    application: str
    route_prefix: str
    http_host: str
    http_port: int
    pipeline: PipelineConfig
    user_config: PipelineUserConfig
    #: The least number of replicas of the pipeline, and of each stage in deployments of its own,
    #: and what each takes of its node.
    least_replicas: list[tuple[int, ActorOptions]]
    document: dict[str, Any]


def parse_args(args: Any, *place: str | int) -> PipelineConfig:
    """Return the checked ``args`` of the application, or raise `ConfigError`."""
    if not isinstance(args, Mapping) or set(args) != {"pipeline"}:
        raise fault((*place, "args"), "must have the key pipeline, and no other")
    return validate(PipelineConfig, args["pipeline"], *place, "args", "pipeline")


def parse_user_config(content: Mapping[str, Any] | None, *place: str | int) -> PipelineUserConfig:
    return validate(PipelineUserConfig, content or {}, *place, "user_config")


def load_pipeline_file(path: str | Path) -> PipelineFile:
    file = YamlFile(path)
    with file.located():
        found = find_applications(file.content, IMPORT_PATH, DEPLOYMENT, policy_function=None)
        if len(found) > 1:
            many = f"{len(found)} have import_path {IMPORT_PATH}, must be one"
            raise fault(("applications",), many)
        (application,) = found
        pipeline = parse_args(application.entry.args, *application.place)
        _check_scaling(pipeline, application)
        return PipelineFile(
            application=application.entry.name,
            route_prefix=application.route_prefix,
            http_host=application.http.host,
            http_port=application.http.port,
            pipeline=pipeline,
            user_config=parse_user_config(
                application.deployment.user_config, *application.deployment_place
            ),
            least_replicas=[
                (application.replicas[0], application.actor),
                *(
                    (stage.workers, stage.ray_actor_options or ActorOptions())
                    for stage in pipeline.deployed().values()
                ),
            ],
            document=file.content,
        )


def _check_scaling(pipeline: PipelineConfig, application: Application) -> None:
    scaling = application.deployment.autoscaling_config
    policy = application.entry.autoscaling_policy
    following = [name for name, s in pipeline.deployed().items() if s.max_workers is not None]
    if not following and scaling is None and policy is None:
        return
    what = f"stage {following[0]}: max_workers" if following else "scaling the pipeline"
    place = application.place
    if pipeline.autoscaling is None:
        raise fault((*place, "args", "pipeline"), f"{what} needs autoscaling")
    if scaling is None:
        raise fault(application.deployment_place, f"{what} needs autoscaling_config")
    if policy is None or policy.policy_function != AUTOSCALING_POLICY:
        raise fault(
            (*place, "autoscaling_policy"),
            f"{what} needs {{policy_function: {AUTOSCALING_POLICY}}} here",
        )
