"""Rows of different lengths: which may share a batch, and how a batch of them is put together."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.errors import ModelError
from deployments.models.base import TensorSpec
from policy.batcher.requests import Slice

Tensors = Mapping[str, NDArray[Any]]


class BatchShapes:
    """The lengths that the rows of a batch may have, by the model's signature."""

    def __init__(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
        self._by_shape = [spec.name for spec in inputs if spec.is_variable and spec.pad is None]
        self._padded = {spec.name: spec for spec in inputs if spec.pad is not None}
        axes = {spec.name: 1 + spec.shape.index(-1) for spec in self._padded.values()}
        #: Output, its axis, input, its axis.
        self._cut = [
            (spec.name, 1 + spec.shape.index(-1), spec.length_of, axes[spec.length_of])
            for spec in outputs
            if spec.length_of
        ]

    def class_of(self, inputs: Tensors) -> Hashable:
        """Return what requests must have in common to share a batch.

        It is None for a model whose rows may all share one.
        """
        if not self._by_shape:
            return None
        return tuple([inputs[name].shape[1:] for name in self._by_shape])

    def join(self, slices: Sequence[Slice]) -> Tensors:
        """Return the batch that slices of requests make, with padding where the model wants it.

        Its arrays are new: the model may write into them.
        """
        parts = [_inputs_of(part) for part in slices]
        names = [name for name in parts[0] if name not in self._padded]
        if len(parts) == 1:
            batch = {name: parts[0][name].copy() for name in names}
        else:
            batch = {name: np.concatenate([part[name] for part in parts]) for name in names}
        for name, spec in self._padded.items():
            _pad(spec, [part[name] for part in parts], batch)
        return batch

    def cut(self, outputs: Sequence[dict[str, NDArray[Any]]], slices: Sequence[Slice]) -> None:
        """Cut what stands for padding off the outputs of slices.

        `ModelError`: an output is not as long as the batch's padded input.
        """
        for name, axis, source, source_axis in self._cut:
            lengths = [part.request.content[source].shape[source_axis] for part in slices]
            for part, length in zip(outputs, lengths, strict=True):
                array = part[name]
                if array.shape[axis] != max(lengths):
                    raise ModelError(
                        f"output {name!r}: its length must be that of {source!r}, {max(lengths)}, "
                        f"not {array.shape[axis]}"
                    )
                part[name] = array[(slice(None),) * axis + (slice(length),)]


def _inputs_of(part: Slice) -> Tensors:
    inputs: Tensors = part.request.content
    if part.stop - part.start == part.request.rows:
        return inputs
    return {name: array[part.start : part.stop] for name, array in inputs.items()}


def _pad(spec: TensorSpec, arrays: Sequence[NDArray[Any]], batch: dict[str, NDArray[Any]]) -> None:
    """Copy the padded input into a batch, and its lengths if the model wants them."""
    axis = 1 + spec.shape.index(-1)
    lengths = [array.shape[axis] for array in arrays]
    shape = list(arrays[0].shape)
    shape[0], shape[axis] = sum([len(array) for array in arrays]), max(lengths)
    batch[spec.name] = padded = np.full(shape, spec.pad, spec.numpy_dtype)
    at = 0
    for array, length in zip(arrays, lengths, strict=True):
        place = (slice(at, at + len(array)), *(slice(None),) * (axis - 1), slice(length))
        padded[place] = array
        at += len(array)
    if spec.lengths:
        counts = [len(array) for array in arrays]
        batch[spec.lengths] = np.repeat(np.array(lengths, np.int64), counts)
