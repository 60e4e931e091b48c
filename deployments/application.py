"""The application that a config file names: `import_path: deployments.application:build`."""

from typing import Any

from pydantic import ValidationError
from ray import serve

from deployments.config import ReplicaArgs, first_line
from deployments.replica import Replica
from policy.errors import InvalidInputError


def build(args: dict[str, Any]) -> serve.Application:
    """Build the Serve application of `args`.

    Raises
    ------
    InvalidInputError
        One line: the first thing that is wrong in `args`, and what is allowed.
    """
    try:
        checked = ReplicaArgs.model_validate(args)
    except ValidationError as error:
        raise InvalidInputError(f"args: {first_line(error)}") from None
    return Replica.bind(checked.model.model_dump())  # type: ignore[attr-defined]
