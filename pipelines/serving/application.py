"""Application builder of a pipeline, ``import_path: pipelines.serving.application:build``."""

from typing import Any

from ray import serve

from pipelines.serving.config import parse_args
from pipelines.serving.replica import PipelineReplica


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
    return PipelineReplica.bind(args)  # type: ignore[attr-defined]
