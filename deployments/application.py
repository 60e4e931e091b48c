"""Application builder. A config file names it as ``import_path: deployments.application:build``."""

from typing import Any

from ray import serve

from deployments.config import parse_args
from deployments.replica import Replica


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
    return Replica.bind(checked.model.model_dump(), store)  # type: ignore[attr-defined]
