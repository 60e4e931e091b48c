"""Check a model's outputs against its declaration."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.errors import ModelError, StartError
from deployments.models.base import Model, TensorSpec
from deployments.models.example_request import example_batch

#: The smallest float that is rounded to infinity in BF16.
_BF16_OVERFLOW = (2 - 2**-8) * 2.0**127


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


def fit_output(spec: TensorSpec, values: Any) -> NDArray[Any]:
    """Return a new array of an output's values in its declared datatype.

    Floats are rounded; no other value changes. `ModelError`: a value does not fit the datatype, or
    is NaN or infinite although the spec does not allow that.
    """
    dtype, given = spec.numpy_dtype, np.asarray(values)
    if dtype.kind == "O":
        return _fit_bytes(spec, given)
    if (
        given.dtype == dtype
        and spec.datatype != "BF16"
        and (dtype.kind != "f" or spec.allow_nan or _is_finite(given))
    ):
        return given.copy()
    if given.dtype.kind not in "biuf":
        raise _misfit(spec, given.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        fitted = given.astype(dtype, order="C")
    if dtype.kind == "f":
        if not spec.allow_nan and not _is_finite(given):
            raise ModelError(
                f"output {spec.name!r} has NaN or infinity; if that is right, set allow_nan in its "
                "TensorSpec"
            )
        finite = np.isfinite(fitted)
        if spec.datatype == "BF16":
            finite &= np.abs(fitted) < _BF16_OVERFLOW
        misfits = ~finite & np.isfinite(given)
    else:
        misfits = fitted != given
        if given.dtype.kind == "f":  # some processors convert larger floats to the largest integer
            misfits |= given >= 2.0 ** (8 * dtype.itemsize - (dtype.kind == "i"))
    if misfits.any():
        raise _misfit(spec, given[misfits][0])
    return fitted


def _fit_bytes(spec: TensorSpec, given: NDArray[Any]) -> NDArray[Any]:
    for kind in set(map(type, given.ravel().tolist())):
        if not issubclass(kind, bytes):
            hint = "; return text.encode()" if issubclass(kind, str) else ""
            raise _misfit(spec, f"{kind.__name__}{hint}")
    return given.astype(object, order="C")


def _is_finite(array: NDArray[Any]) -> bool:
    # `isfinite(array).all()` takes twice as long.
    return bool(np.count_nonzero(np.isfinite(array)) == array.size)


def _misfit(spec: TensorSpec, given: object) -> ModelError:
    return ModelError(f"output {spec.name!r}: {spec.datatype} expected, got {given!s}")


def check_forward(model: Model, batch_sizes: Sequence[int]) -> None:
    """Run the model on its own examples; `StartError` if its outputs are not as declared."""
    for size in batch_sizes:
        try:
            outputs = model.forward(example_batch(model, size))
        except Exception as error:
            raise StartError(
                f"the model failed on its example of {size}: {type(error).__name__}: {error}"
            ) from error
        wrong = wrong_shape(outputs, size, model.outputs) or _wrong_type(outputs, model.outputs)
        if wrong is not None:
            raise StartError(f"the model's outputs for a batch of {size}: {wrong}")


def _wrong_type(outputs: Mapping[str, Any], specs: Sequence[TensorSpec]) -> str | None:
    """Return which output has another kind of type than declared, or a value that does not fit."""
    for spec in specs:
        given = np.asarray(outputs[spec.name]).dtype
        if spec.datatype != "BYTES" and not np.can_cast(given, spec.numpy_dtype, "same_kind"):
            return f"output {spec.name!r}: {spec.datatype} expected, got {given}"
        try:
            fit_output(spec, outputs[spec.name])
        except ModelError as error:
            return str(error)
    return None
