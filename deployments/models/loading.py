"""Find a model's class by its import path, construct it, and load it."""

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deployments.errors import StartError
from deployments.models.base import LoadWeights, Model, TensorSpec
from policy.errors import InvalidInputError, SojournError

DEVICES = ("cpu", "cuda")

MODELS = {
    "digits": "deployments.models.digits:Digits",
    "emulated": "deployments.models.emulated:Emulated",
}
"""Import paths of the models that come with Sojourn, by short name."""


def load_model(
    import_path: str,
    options: Mapping[str, Any],
    device: str,
    weights: LoadWeights | None = None,
) -> Model:
    """Import a model class, construct the model with its options, and load it.

    `import_path` is ``package.module:Class``, or a short name from `MODELS`. A `load` that takes
    weights gets `weights`, by default `deployments.models.weights.load_weights`.

    Raises
    ------
    InvalidInputError
        The path does not name a model class, the options do not match its constructor, the device
        is unknown, or the model's inputs or outputs are invalid.
    StartError
        The model's constructor or `load` failed; the message contains that of the model.
    """
    if device not in DEVICES:
        raise InvalidInputError(f"device: must be {' or '.join(DEVICES)}, not {device!r}")
    model = make_model(import_path, options)
    with _raise_as_start_error(import_path):
        load_onto(model, device, weights)
    _check_specs(model, import_path)
    return model


def make_model(import_path: str, options: Mapping[str, Any]) -> Model:
    """Import a model class and construct the model without loading it; see `load_model`."""
    model_class = find_model_class(import_path)
    _check_options(model_class, import_path, options)
    with _raise_as_start_error(import_path):
        return model_class(**options)


@contextmanager
def _raise_as_start_error(import_path: str) -> Iterator[None]:
    try:
        yield
    except SojournError:
        raise
    except Exception as error:
        raise StartError(
            f"model {import_path} failed to load: {type(error).__name__}: {error}"
        ) from error


def check_weights(model: Model | type[Model], import_path: str, weights: str | None) -> None:
    """Raise `InvalidInputError` if the config names weights that the model does not take."""
    if weights is not None and not _asks_for_weights(model):
        raise InvalidInputError(
            f"model {import_path}: weights: its `load` must have a second parameter `weights`"
        )


def _asks_for_weights(model: Model | type[Model]) -> bool:
    return "weights" in inspect.signature(model.load).parameters


def load_onto(model: Model, device: str, weights: LoadWeights | None = None) -> None:
    if not _asks_for_weights(model):
        model.load(device)
        return
    if weights is None:
        # Imported by name, because it may need torch, which may be missing here.
        weights = importlib.import_module("deployments.models.weights").load_weights
    load: Callable[..., None] = model.load
    load(device, weights=weights)


def find_model_class(import_path: str) -> type[Model]:
    """Import a model's class; `InvalidInputError` if the path does not name one."""
    import_path = MODELS.get(import_path, import_path)
    module_name, colon, class_name = import_path.partition(":")
    if not colon or not module_name or not class_name:
        raise InvalidInputError(
            f"model {import_path!r}: must be package.module:Class, or one of {', '.join(MODELS)}"
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise InvalidInputError(
                f"model {import_path!r}: no module named {error.name!r} in {Path.cwd()} or on the "
                f"Python path{_nearest_module(error.name)}; for a cluster, see `sojourn package`"
            ) from error
        raise InvalidInputError(f"model {import_path!r}: import failed: {error}") from error
    except Exception as error:
        raise InvalidInputError(
            f"model {import_path!r}: import failed: {type(error).__name__}: {error}"
        ) from error
    found = getattr(module, class_name, None)
    if found is None:
        raise InvalidInputError(f"model {import_path!r}: {module_name} has no {class_name!r}")
    if not (isinstance(found, type) and issubclass(found, Model)):
        raise InvalidInputError(
            f"model {import_path!r}: {class_name} is not a subclass of sojourn.Model"
        )
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise InvalidInputError(f"model {import_path!r}: {class_name} does not define {missing}")
    return found


def _nearest_module(name: str) -> str:
    near = difflib.get_close_matches(name, [path.stem for path in Path.cwd().glob("*.py")], n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _check_options(model_class: type[Model], import_path: str, options: Mapping[str, Any]) -> None:
    signature = inspect.signature(model_class)
    try:
        signature.bind(**options)
    except TypeError as error:
        allowed = ", ".join(signature.parameters) or "none"
        raise InvalidInputError(
            f"model {import_path}: options: {error}; the options are: {allowed}"
        ) from error


def _check_specs(model: Model, import_path: str) -> None:
    for kind in ("inputs", "outputs"):
        specs = getattr(model, kind, None)
        if (
            not isinstance(specs, tuple)
            or not specs
            or not all(isinstance(spec, TensorSpec) for spec in specs)
        ):
            raise InvalidInputError(
                f"model {import_path}: {kind} must be a non-empty tuple of TensorSpec"
            )
        names = [spec.name for spec in specs]
        if len(set(names)) != len(names):
            raise InvalidInputError(
                f"model {import_path}: {kind} contain two tensors with the same name"
            )
    _check_lengths(model, import_path)


def _check_lengths(model: Model, import_path: str) -> None:
    """Check the references between tensors."""
    names = {spec.name for spec in model.inputs}
    padded = {spec.name for spec in model.inputs if spec.pad is not None}
    for spec in model.inputs:
        if spec.length_of:
            raise InvalidInputError(
                f"model {import_path}: input {spec.name!r}: length_of is for outputs"
            )
        if spec.lengths in names:
            raise InvalidInputError(
                f"model {import_path}: input {spec.name!r}: lengths must be another name than "
                f"that of an input, not {spec.lengths!r}"
            )
        names |= {spec.lengths} - {""}
    for spec in model.outputs:
        if spec.pad is not None:
            raise InvalidInputError(f"model {import_path}: output {spec.name!r}: pad is for inputs")
        if spec.length_of and spec.length_of not in padded:
            raise InvalidInputError(
                f"model {import_path}: output {spec.name!r}: length_of must be an input with pad, "
                f"not {spec.length_of!r}"
            )
