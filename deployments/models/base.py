"""The interface of a model: its inputs and outputs, `load` and `forward`.

To serve your own model, write one class and name its import path in the config::

    class Doubler(Model):
        inputs = (TensorSpec("x", "FP32", (3,)),)
        outputs = (TensorSpec("y", "FP32", (3,)),)

        def load(self, device):
            self.factor = np.float32(2)

        def forward(self, batch):
            return {"y": self.factor * batch["x"]}
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from policy.errors import InvalidInputError
from policy.profile import Profile


class LoadWeights(Protocol):
    """A function that returns the tensors of a source by name; `Model.load` may request one."""

    def __call__(self, source: str | Path, device: Any = "cpu") -> Mapping[str, Any]:
        """Return the tensors, as `deployments.models.weights.WeightsLoader` does."""


class EnergyMeter(Protocol):
    """A counter of the energy that a device uses.

    `source` describes it, for people. `is_shared`: others may use the device as well, so that what
    it uses need not be for the batches of this model.
    """

    @property
    def source(self) -> str: ...

    @property
    def is_shared(self) -> bool: ...

    def read_mj(self) -> float:
        """Return the energy since a fixed instant, in mJ. It never decreases.

        Raises
        ------
        InfeasibleError
            The counter can no longer be read.
        """


#: Default of `TensorSpec.max_dim`.
DEFAULT_MAX_DIM = 1024

_NUMPY_DTYPES: Mapping[str, np.dtype[Any]] = {
    name: np.dtype(numpy_name)
    for name, numpy_name in {
        "BOOL": "bool",
        "UINT8": "uint8",
        "UINT16": "uint16",
        "UINT32": "uint32",
        "UINT64": "uint64",
        "INT8": "int8",
        "INT16": "int16",
        "INT32": "int32",
        "INT64": "int64",
        "FP16": "float16",
        "BF16": "float32",
        "FP32": "float32",
        "FP64": "float64",
        "BYTES": "object",
    }.items()
}


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a model.

    Attributes
    ----------
    name : str
        The tensor's name in the Open Inference Protocol.
    datatype : str
        The protocol's name of the type: BOOL, UINT8 … INT64, FP16, BF16, FP32, FP64 or BYTES. BF16
        reaches the model as float32, which holds each of its values exactly: numpy has no
        bfloat16, and torch takes no array of one.
    shape : tuple of int
        Shape of one row, without the batch dimension. ``()`` means one value per row. -1 is a
        dimension of any length from 1 to `max_dim`.
    allow_nan : bool
        Whether the tensor may contain NaN or infinity. If not, requests with such an input are
        rejected, and a model that returns such an output for its own example does not start.
    max_dim : int
        The longest that a dimension of -1 may be.
    example_dim : int or None
        Its length in `Model.example`, for which the profile is measured; `max_dim` by default.
    pad : int, float, bool, bytes or None
        For an input with one dimension of -1: its rows are padded at their end with this value to
        the longest of their batch. None: rows are batched only with rows of the same shape.
    lengths : str
        Name under which `forward` gets the lengths before padding, an array of int64 of shape
        ``(batch_size,)``. Empty: it does not.
    length_of : str
        For an output with one dimension of -1: the padded input whose length it has. What stands
        for padding is cut off before the answer.

    Raises
    ------
    InvalidInputError
        The name is empty, the datatype is unknown, a dimension is neither -1 nor at least 1, or an
        option does not fit the shape.
    """

    name: str
    datatype: str
    shape: tuple[int, ...] = ()
    allow_nan: bool = False
    _: KW_ONLY
    max_dim: int = DEFAULT_MAX_DIM
    example_dim: int | None = None
    pad: float | bytes | None = None
    lengths: str = ""
    length_of: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidInputError(f"tensor name: must be a non-empty string, not {self.name!r}")
        if self.datatype not in _NUMPY_DTYPES:
            raise InvalidInputError(
                f"tensor {self.name}: datatype {self.datatype!r} is not one of "
                f"{', '.join(_NUMPY_DTYPES)}"
            )
        if not isinstance(self.shape, tuple) or not all(
            type(length) is int and (length >= 1 or length == -1) for length in self.shape
        ):
            raise InvalidInputError(
                f"tensor {self.name}: shape must be a tuple of whole numbers of at least 1, or -1 "
                f"for any length, without the batch dimension, not {self.shape!r}"
            )
        self._check_lengths()
        self._check_padding()

    def _check_lengths(self) -> None:
        if type(self.max_dim) is not int or self.max_dim < 1:
            raise InvalidInputError(
                f"tensor {self.name}: max_dim must be a whole number of at least 1, "
                f"not {self.max_dim!r}"
            )
        dim = self.example_dim
        if dim is not None and not (type(dim) is int and 1 <= dim <= self.max_dim):
            raise InvalidInputError(
                f"tensor {self.name}: example_dim must be a whole number from 1 to max_dim, "
                f"{self.max_dim}, not {dim!r}"
            )

    def _check_padding(self) -> None:
        for option in ("pad", "length_of"):
            if getattr(self, option) not in (None, "") and self.shape.count(-1) != 1:
                raise InvalidInputError(
                    f"tensor {self.name}: {option} needs exactly one dimension of -1, "
                    f"not the shape {self.shape!r}"
                )
        if self.lengths and self.pad is None:
            raise InvalidInputError(f"tensor {self.name}: lengths needs pad")
        if self.pad is None:
            return
        types = {"f": (int, float), "i": (int,), "u": (int,), "b": (bool,), "O": (bytes,)}
        fits = type(self.pad) in types[self.numpy_dtype.kind]
        if fits and self.numpy_dtype.kind in "iu":
            limits = np.iinfo(self.numpy_dtype)
            fits = limits.min <= self.pad <= limits.max  # type: ignore[operator]
        if not fits:
            raise InvalidInputError(
                f"tensor {self.name}: pad must be a value of {self.datatype}, not {self.pad!r}"
            )

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """Data type of the arrays. BYTES tensors are object arrays of `bytes` of any length."""
        return _NUMPY_DTYPES[self.datatype]

    @property
    def is_variable(self) -> bool:
        """Whether a dimension has variable length."""
        return -1 in self.shape

    @property
    def max_shape(self) -> tuple[int, ...]:
        """The shape of the largest row."""
        return self._with_length(self.max_dim)

    @property
    def example_shape(self) -> tuple[int, ...]:
        """The shape of a row of `Model.example`."""
        return self._with_length(self.example_dim or self.max_dim)

    def fits(self, shape: Sequence[int]) -> bool:
        """Return whether a row may have this shape."""
        return len(shape) == len(self.shape) and all(
            1 <= length <= self.max_dim if declared == -1 else length == declared
            for length, declared in zip(shape, self.shape, strict=True)
        )

    def _with_length(self, length: int) -> tuple[int, ...]:
        return tuple(length if declared == -1 else declared for declared in self.shape)


class Model(ABC):
    """A model that a replica serves.

    The constructor receives the config's options as keyword arguments. It should only check and
    store them; `load` runs once and does the work. `forward` is never called twice at once. It runs
    in one dedicated thread, or on the event loop's own thread where batches on the CPU take less
    than handing them over.

    Attributes
    ----------
    inputs, outputs : tuple of TensorSpec
        The tensors of one row. They may be set in the constructor or in `load`.
    waits : bool
        Whether `forward` waits for something other than this CPU, such as a network. Then the event
        loop never runs it.
    idempotent : bool
        Whether a request may be computed twice. If not, a request whose replica was lost while it
        was perhaps being computed is answered 500 instead of being sent to another replica.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    waits: bool = False
    idempotent: bool = True

    @abstractmethod
    def load(self, device: str) -> None:
        """Load the model on `device`, which is ``cpu`` or ``cuda``.

        A model with a second parameter `weights` receives
        `deployments.models.weights.WeightsLoader`, which reads a safetensors file or attaches to
        weights that all replicas of this machine share::

            def load(self, device, weights=load_weights):
                with torch.device("meta"):
                    self.network = Network()
                state = weights("resnet50.safetensors", device)
                self.network.load_state_dict(state, assign=True)

        The config's `weights` names another file, or ``store://resnet50@2``, in its place.
        """

    @abstractmethod
    def forward(self, batch: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """Compute a batch. Block until the outputs are in host memory.

        If this method raises an error, the batcher assumes that some row of the batch caused it. It
        runs parts of the batch again until it has found that row, and fails only its request. A
        model that can name the bad rows saves this search::

            raise RowsError({2: BadRequestError("the image is empty")})

        The client that sent row 2 receives that error, and all other requests are run again at
        once. A `ModelError` fails all requests of the batch.

        Parameters
        ----------
        batch : mapping of str to ndarray, each of shape (batch_size, *spec.shape)
            The inputs, by name, in arrays that `forward` may change. Where `spec.shape` has -1,
            all rows have one length: that of each, or that of the longest if the others are padded.

        Returns
        -------
        mapping of str to ndarray, each of shape (batch_size, *spec.shape)
            The outputs, by name. Row ``i`` answers row ``i`` of the inputs.

        Raises
        ------
        deployments.errors.RowsError
            Some rows failed; the error maps each of them to the error for its client.
        deployments.errors.ModelError
            The whole batch failed, regardless of its rows.
        Exception
            Any other error: an unknown row of the batch caused it.
        """

    def unload(self) -> None:
        """Release what `load` created; called once, when another version has taken over.

        By default, all attributes are dropped. So weights are released even if objects refer
        to each other, without waiting for the garbage collector.
        """
        vars(self).clear()

    def energy_meter(self) -> EnergyMeter | None:
        """Return the meter of a device that counts its own energy; None: the machine's is used."""
        return None

    def profile(self) -> Profile | None:
        """Return the model's profile, or None if it must be measured."""
        return None

    def example(self, batch_size: int) -> dict[str, NDArray[Any]]:
        """Return a valid batch, for warming up and for measuring the profile.

        By default, all values are zero or empty `bytes`, and dimensions of -1 have the length
        `TensorSpec.example_dim`. Override this method if the time of a batch depends on the content
        of its rows; a model with `TensorSpec.lengths` must return them, too.

        Returns
        -------
        dict of str to ndarray, each of shape (batch_size, *spec.shape)
            The inputs, by name.
        """
        batch: dict[str, NDArray[Any]] = {}
        for spec in self.inputs:
            shape = spec.example_shape
            zero = b"" if spec.datatype == "BYTES" else 0
            batch[spec.name] = np.full((batch_size, *shape), zero, spec.numpy_dtype)
            if spec.lengths:
                batch[spec.lengths] = np.full(batch_size, shape[spec.shape.index(-1)], np.int64)
        return batch
