"""Say in one line what is wrong with what a user wrote."""

from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from deployments.serve_document import unknown_key
from policy.errors import InvalidInputError

_Model = TypeVar("_Model", bound=BaseModel)


class StrictModel(BaseModel):
    """A part of what a user wrote: unknown keys are errors, and nothing changes it."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def validate(model: type[_Model], content: Any, where: str = "") -> _Model:
    """Return `content` as a `model`.

    Parameters
    ----------
    model : type of BaseModel
    content : Any
    where : str
        What the content is part of, for the message.

    Raises
    ------
    InvalidInputError
        The first error, in one line: where it is, and what is allowed.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        message = _first_line(error, model)
        raise InvalidInputError(f"{where}: {message}" if where else message) from None


def _first_line(error: ValidationError, model: type[BaseModel]) -> str:
    """Return pydantic's first error in one line: where it is, what is wrong, the value given."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"{where}: {unknown_key(str(first['loc'][-1]), _known_keys(model, first['loc']))}"
    message = first["msg"].removeprefix("Value error, ")
    given = "" if isinstance(first["input"], dict) else f", not {first['input']!r}"
    return f"{where}: {message[:1].lower()}{message[1:]}{given}" if where else message


def _known_keys(model: type[BaseModel], location: tuple[int | str, ...]) -> set[str]:
    for name in location[:-1]:
        field = model.model_fields.get(str(name))
        model = (field and _model_within(field.annotation)) or model
    return set(model.model_fields)


def _model_within(annotation: Any) -> type[BaseModel] | None:
    """Return the model in an annotation such as ``list[Model] | None``, if there is one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_within(part) for part in get_args(annotation))
    return next((model for model in found if model), None)
