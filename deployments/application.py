"""Application builder. A config file names it as ``import_path: deployments.application:build``."""

from typing import Any, cast

from ray import serve

from deployments.config.replica_args import parse_args
from deployments.serving.replica import Replica


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
    checked = parse_args(args)
    store = checked.store and checked.store.model_dump(mode="json")
    # Serve's decorators hide from type checkers that they return a deployment.
    return cast(serve.Deployment, Replica).bind(
        checked.model.model_dump(),
        store,
        [model.model_dump() for model in checked.models],
        on_demand=checked.load_models == "on_demand",
    )
