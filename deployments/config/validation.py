"""One-line errors of a configuration: the key, the problem, the allowed values."""

import difflib
from collections.abc import Collection, Iterator, Sequence
from typing import Any, ClassVar, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from policy.errors import InvalidInputError

_Model = TypeVar("_Model", bound=BaseModel)
#: A key that more blocks have is a common word.
_MAX_HOMES = 2
#: The keys and indexes that lead to a value.
Place = tuple[str | int, ...]


class ConfigError(InvalidInputError):
    """A configuration is wrong at `place`; `deployments.config.yaml_file` adds file and line."""

    def __init__(self, message: str, place: Place = ()) -> None:
        super().__init__(message)
        self.place = place


class StrictModel(BaseModel):
    """A part of a configuration: unknown keys are errors, and nothing is converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    #: Where this part stands in a config file, if it is validated by itself.
    block: ClassVar[str | None] = None


def validate(model: type[_Model], content: Any, *place: str | int) -> _Model:
    """Return `content` as a `model`; `ConfigError` has the first error, or an unknown key."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        found = error.errors()
        first = next((one for one in found if one["type"] == "extra_forbidden"), found[0])
        raise fault((*place, *first["loc"]), _problem(first, model)) from None


def fault(place: Place, problem: str) -> ConfigError:
    where = ".".join(map(str, place))
    return ConfigError(f"{where}: {problem}" if where else problem, place)


def repeated(values: Sequence[str]) -> str | None:
    """Return the first of the values that is there twice."""
    return next((value for value in values if values.count(value) > 1), None)


def without_effect(remedy: str) -> PydanticCustomError:
    """Return the error of a key that does nothing."""
    return PydanticCustomError("without_effect", "has no effect; {remedy}", {"remedy": remedy})


def unknown_key(name: str, known: Collection[str]) -> str:
    """Return the error for an unknown key, with the nearest known one, or all of them."""
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"unknown key; did you mean {near[0]}?"
    return f"unknown key; known are {', '.join(sorted(known))}"


def _problem(error: ErrorDetails, model: type[BaseModel]) -> str:
    kind, place, given = error["type"], error["loc"], error["input"]
    if kind == "extra_forbidden":
        name = str(place[-1])
        homes = {*_blocks_with(name, model), *_other_blocks_with(name, model)} - {""}
        if homes and len(homes) <= _MAX_HOMES:
            return f"unknown key here; it belongs in {' or '.join(sorted(homes, key=len))}"
        return unknown_key(name, _known_keys(model, place))
    if kind == "missing":
        return "is required"
    message = " ".join(error["msg"].removeprefix("Value error, ").split())
    if kind == "model_type":
        message = "must be a mapping"
    message = message[:1].lower() + message[1:]
    if kind == "without_effect" or isinstance(given, dict) or not place:
        return message
    return f"{message}, not {given!r:.100}"


def _blocks_with(
    key: str, model: type[BaseModel], block: str | None = None, within: Sequence[type] = ()
) -> Iterator[str]:
    """Yield the blocks of a file that have a key; `model` stands in `block`, `within` others."""
    block = (getattr(model, "block", None) or "") if block is None else block
    within = (*within, model)
    for name, field in model.model_fields.items():
        if name == key:
            yield block
        inner = _model_within(field.annotation)
        if inner is not None and inner not in within:
            yield from _blocks_with(key, inner, f"{block}.{name}".removeprefix("."), within)


def _other_blocks_with(key: str, model: type[BaseModel]) -> Iterator[str]:
    """Yield the blocks that have a key, of all parts of a file if `model` is one of them."""
    if getattr(model, "block", None) is not None:
        parts = [*StrictModel.__subclasses__()]
        for part in parts:
            parts += part.__subclasses__()
            if "block" in vars(part):
                yield from _blocks_with(key, part)


def _known_keys(model: type[BaseModel], place: Place) -> set[str]:
    for name in place[:-1]:
        field = model.model_fields.get(str(name))
        model = (field and _model_within(field.annotation)) or model
    return set(model.model_fields)


def _model_within(annotation: Any) -> type[BaseModel] | None:
    """Return the model in an annotation such as ``list[Model] | None``, if there is one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_within(part) for part in get_args(annotation))
    return next((model for model in found if model), None)
