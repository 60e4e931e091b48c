"""Say in one line what is wrong with what a user wrote."""

import difflib
from collections.abc import Collection
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from policy.errors import InvalidInputError

_Model = TypeVar("_Model", bound=BaseModel)


class StrictModel(BaseModel):
    """A part of what a user wrote: unknown keys are errors, and nothing changes it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse `true` for a number; pydantic takes it for 1."""
        if isinstance(value, bool) and info.field_name is not None:
            kinds = _kinds(cls.model_fields[info.field_name].annotation)
            if kinds & {int, float} and not kinds & {bool, Any}:
                raise ValueError("must be a number")
        return value


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


def unknown_key(name: str, known: Collection[str]) -> str:
    """Return what is wrong with an unknown key: the nearest known one, or all of them."""
    near = difflib.get_close_matches(name, known, n=1)
    return (
        f"unknown key; did you mean {near[0]}?"
        if near
        else (f"unknown key; known are {', '.join(sorted(known))}")
    )


def _first_line(error: ValidationError, model: type[BaseModel]) -> str:
    """Return pydantic's first error in one line: where it is, what is wrong, the value given."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"{where}: {unknown_key(str(first['loc'][-1]), _known_keys(model, first['loc']))}"
    message = " ".join(first["msg"].removeprefix("Value error, ").split())
    given = "" if isinstance(first["input"], dict) else f", not {first['input']!r}"
    return f"{where}: {message[:1].lower()}{message[1:]}{given}" if where else message


def _known_keys(model: type[BaseModel], location: tuple[int | str, ...]) -> set[str]:
    for name in location[:-1]:
        field = model.model_fields.get(str(name))
        model = (field and _model_within(field.annotation)) or model
    return set(model.model_fields)


def _kinds(annotation: Any) -> set[Any]:
    """Return the types in an annotation such as ``int | None``; none of those within a list."""
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        return {kind for part in get_args(annotation) for kind in _kinds(part)}
    return {annotation} if origin is None else set()


def _model_within(annotation: Any) -> type[BaseModel] | None:
    """Return the model in an annotation such as ``list[Model] | None``, if there is one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_within(part) for part in get_args(annotation))
    return next((model for model in found if model), None)
