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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policy.errors import InvalidInputError
from policy.profile import Profile

LoadWeights = Callable[[str | Path, Any], Mapping[str, Any]]
"""What `Model.load` may ask for: it maps a source of weights and a device to tensors by name."""

_NUMPY_DTYPES = {
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
    "FP32": "float32",
    "FP64": "float64",
    "BYTES": "object",
}


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a model.

    Attributes
    ----------
    name : str
        The tensor's name in the Open Inference Protocol.
    datatype : str
        The protocol's name of the type: BOOL, UINT8 … INT64, FP16, FP32, FP64 or BYTES.
    shape : tuple of int
        Shape of one row, without the batch dimension. ``()`` means one value per row.
    allow_nan : bool
        Whether the tensor may contain NaN or infinity. If not, requests with such an input are
        rejected, and a model that returns such an output for its own example does not start.

    Raises
    ------
    InvalidInputError
        The name is empty, the datatype is unknown, or a dimension is below 1.
    """

    name: str
    datatype: str
    shape: tuple[int, ...] = ()
    allow_nan: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidInputError(f"tensor name: must be a non-empty string, not {self.name!r}")
        if self.datatype not in _NUMPY_DTYPES:
            raise InvalidInputError(
                f"tensor {self.name}: datatype {self.datatype!r} is not one of "
                f"{', '.join(_NUMPY_DTYPES)}"
            )
        if not isinstance(self.shape, tuple) or not all(
            type(length) is int and length >= 1 for length in self.shape
        ):
            raise InvalidInputError(
                f"tensor {self.name}: shape must be a tuple of whole numbers of at least 1, "
                f"without the batch dimension, not {self.shape!r}"
            )

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """Data type of the arrays. BYTES tensors are object arrays of `bytes` of any length."""
        return np.dtype(_NUMPY_DTYPES[self.datatype])


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

        A model that names a second parameter `weights` is given
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
        model that knows the bad rows saves this search::

            raise RowsError({2: BadRequestError("the image is empty")})

        The client that sent row 2 receives that error, and all other requests are run again at
        once. A `ModelError` fails all requests of the batch.

        Parameters
        ----------
        batch : mapping of str to ndarray, each of shape (batch_size, *spec.shape)
            The inputs, by name.

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
        """Give up what `load` made; called once, when another version has taken over.

        By default, all attributes are dropped. So weights are given back even where objects refer
        to each other, without waiting for the garbage collector.
        """
        vars(self).clear()

    def batch_energy_mj(self, batch_size: int) -> float | None:
        """Return the energy of a batch in mJ, or None if the model does not know it."""
        return None

    def profile(self) -> Profile | None:
        """Return the model's profile, or None if it must be measured."""
        return None

    def example(self, batch_size: int) -> dict[str, NDArray[Any]]:
        """Return a valid batch, for warming up and for measuring the profile.

        By default, all values are zero or empty `bytes`. Override this method if the time of a
        batch depends on the content of its rows.

        Parameters
        ----------
        batch_size : int

        Returns
        -------
        dict of str to ndarray, each of shape (batch_size, *spec.shape)
            The inputs, by name.
        """
        return {
            spec.name: np.full(
                (batch_size, *spec.shape), b"" if spec.datatype == "BYTES" else 0, spec.numpy_dtype
            )
            for spec in self.inputs
        }
