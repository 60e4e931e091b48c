"""Application builder. A config file names it as ``import_path: deployments.application:build``."""

from typing import Any

from pydantic import ValidationError
from ray import serve

from deployments.config import ReplicaArgs, first_line
from deployments.replica import Replica
from policy.errors import InvalidInputError


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
    try:
        checked = ReplicaArgs.model_validate(args)
    except ValidationError as error:
        raise InvalidInputError(f"args: {first_line(error)}") from None
    return Replica.bind(checked.model.model_dump())  # type: ignore[attr-defined]
