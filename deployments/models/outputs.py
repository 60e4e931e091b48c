"""Check a model's outputs against its declaration."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from deployments.errors import StartError
from deployments.models.base import Model, TensorSpec


def wrong_shape(outputs: object, batch_size: int, specs: Sequence[TensorSpec]) -> str | None:
    """Return which output is missing or has a wrong shape, or None if all are right.

    `outputs` is the result of `Model.forward` for a batch of `batch_size` rows.
    """
    if not isinstance(outputs, Mapping):
        return f"forward returned {type(outputs).__name__}, must return a mapping of its outputs"
    for spec in specs:
        if spec.name not in outputs:
            given = ", ".join(map(repr, outputs)) or "nothing"
            return f"forward returned {given}; {spec.name!r} is missing"
        expected, shape = (batch_size, *spec.shape), np.shape(outputs[spec.name])
        if shape[:1] != expected[:1] or not _fits(shape[1:], spec):
            return f"output {spec.name!r}: {expected} expected, got {shape}"
    return None


def _fits(shape: tuple[int, ...], spec: TensorSpec) -> bool:
    """Return whether an output may have this shape; `max_dim` applies to inputs only."""
    return len(shape) == len(spec.shape) and all(
        length == declared or declared == -1
        for length, declared in zip(shape, spec.shape, strict=True)
    )


def wrong_values(outputs: Mapping[str, Any], specs: Sequence[TensorSpec]) -> str | None:
    """Return which output cannot be converted to its datatype, or is not finite, or None."""
    for spec in specs:
        array = np.asarray(outputs[spec.name])
        if spec.datatype == "BYTES":
            other = next((value for value in array.flat if not isinstance(value, bytes)), None)
            if other is not None:
                return f"output {spec.name!r}: BYTES must be bytes, got {type(other).__name__}"
        elif not np.can_cast(array.dtype, spec.numpy_dtype, "same_kind"):
            return f"output {spec.name!r}: {spec.datatype} expected, got {array.dtype}"
        elif array.dtype.kind == "f" and not spec.allow_nan and not np.isfinite(array).all():
            return (
                f"output {spec.name!r} has NaN or infinity for the model's own example; "
                "if that is right, set allow_nan in its TensorSpec"
            )
    return None


def check_forward(model: Model, batch_sizes: Sequence[int]) -> None:
    """Run the model on its own examples and check the outputs.

    Raises
    ------
    StartError
        `forward` failed, or returned outputs other than those declared.
    """
    for size in batch_sizes:
        try:
            outputs = model.forward(model.example(size))
        except Exception as error:
            raise StartError(
                f"the model failed on its example of {size}: {type(error).__name__}: {error}"
            ) from error
        wrong = wrong_shape(outputs, size, model.outputs) or wrong_values(outputs, model.outputs)
        if wrong is not None:
            raise StartError(f"the model's outputs for a batch of {size}: {wrong}")
