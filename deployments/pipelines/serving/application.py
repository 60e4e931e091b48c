"""Build the Ray Serve application of a pipeline.

Its ``import_path`` is ``deployments.pipelines.serving.application:build``.
"""

import hashlib
from typing import Any

import orjson
from ray import serve

from deployments.pipelines.serving.config import parse_args
from deployments.pipelines.serving.replica import PipelineReplica
from deployments.pipelines.serving.stage_replica import AUTOSCALING, StageReplica
from deployments.pipelines.serving.step_config import StageConfig


def build(args: dict[str, Any]) -> serve.Application:
    """Build the Serve application.

    Parameters
    ----------
    args : dict
        The ``args`` of the application in the config file.

    Raises
    ------
    InvalidInputError
        `args` are invalid. The message names the first problem and what is allowed.
    """
    config = parse_args(args)
    config.build()
    # What it is to a replica: sockets of another version are not its own.
    version = hashlib.sha256(orjson.dumps(args, option=orjson.OPT_SORT_KEYS)).hexdigest()
    stages = {name: _deploy(name, stage, version) for name, stage in config.deployed().items()}
    return PipelineReplica.bind(args, version, stages)  # type: ignore[attr-defined]


def _deploy(name: str, stage: StageConfig, version: str) -> serve.Application:
    options: dict[str, Any] = {"name": name}
    if stage.ray_actor_options is not None:
        options["ray_actor_options"] = stage.ray_actor_options.model_dump(exclude_unset=True)
    if stage.max_workers is None:
        options["num_replicas"] = stage.workers
    else:
        options["autoscaling_config"] = {
            **AUTOSCALING,
            "min_replicas": stage.workers,
            "max_replicas": stage.max_workers,
        }
    bound = StageReplica.options(**options)  # type: ignore[attr-defined]
    return bound.bind(stage.model_dump(mode="json"), version)
