"""What a model is to Sojourn: `load`, `forward`, and what goes in and out.

A model of one's own is one class, named in the config by import path::

    class Doubler(Model):
        inputs = (TensorSpec("x", "FP32", (3,)),)
        outputs = (TensorSpec("y", "FP32", (3,)),)

        def load(self, device):
            self.factor = np.float32(2)

        def forward(self, batch):
            return {"y": self.factor * batch["x"]}
"""

import importlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.errors import StartError
from policy.errors import InvalidInputError, SojournError
from policy.profile import Profile

DEVICES = ("cpu", "cuda")

MODELS = {
    "digits": "deployments.models.digits:Digits",
    "emulated": "deployments.models.emulated:Emulated",
    "sentences": "deployments.models.sentences:Sentences",
}
"""Short names of the models that come with Sojourn."""

_NUMPY_NAMES = {
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
        Its name in the Open Inference Protocol.
    datatype : str
        The protocol's name of the type: BOOL, UINT8 … INT64, FP16, FP32, FP64 or BYTES.
    shape : tuple of int
        Shape of one item, without the batch dimension; ``()`` is one number per item.
    allow_nan : bool
        Whether an input may hold NaN; otherwise the request is refused.

    Raises
    ------
    InvalidInputError
        The name is empty, the datatype unknown, or a dimension below 1.
    """

    name: str
    datatype: str
    shape: tuple[int, ...] = ()
    allow_nan: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidInputError(f"tensor name: must be a non-empty string, not {self.name!r}")
        if self.datatype not in _NUMPY_NAMES:
            raise InvalidInputError(
                f"tensor {self.name}: datatype {self.datatype!r} is not one of "
                f"{', '.join(_NUMPY_NAMES)}"
            )
        if not isinstance(self.shape, tuple) or not all(
            type(length) is int and length >= 1 for length in self.shape
        ):
            raise InvalidInputError(
                f"tensor {self.name}: shape must be a tuple of whole numbers of at least 1, "
                f"the batch dimension left out, not {self.shape!r}"
            )

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """Type of its arrays; BYTES are arrays of objects, each a `bytes` of any length."""
        return np.dtype(_NUMPY_NAMES[self.datatype])


class Model(ABC):
    """A model that a replica serves.

    The constructor takes the options of the config as keywords, and should do no work: that is
    for `load`, which runs once. `forward` runs in one executor thread, never on the event loop.

    Attributes
    ----------
    inputs, outputs : tuple of TensorSpec
        What one request's item is made of. May be set in the constructor or in `load`.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @abstractmethod
    def load(self, device: str) -> None:
        """Bring the model up on `device`, which is ``cpu`` or ``cuda``."""

    @abstractmethod
    def forward(self, batch: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """Answer a batch; block until the answers are in host memory.

        Where it raises, nobody in the batch has an answer, and one of them is to blame: halves of
        the batch are tried until the culprit is found, who alone is told. A model that knows which
        rows are wrong saves that search::

            raise RowsError({2: BadRequestError("the image is empty")})

        tells row 2's sender, and all others are run again at once. A `ModelError` is told to the
        whole batch.

        Parameters
        ----------
        batch : mapping of str to ndarray, each of shape (batch_size, *spec.shape)
            The inputs by name.

        Returns
        -------
        mapping of str to ndarray, each of shape (batch_size, *spec.shape)
            The outputs by name; item ``i`` answers item ``i``.

        Raises
        ------
        RowsError
            Some rows are wrong; it says which.
        ModelError
            The whole batch failed, whatever is in it.
        Exception
            Any other: some row is to blame.
        """

    def batch_energy_mj(self, batch_size: int) -> float | None:
        """Energy that a batch takes, where the model itself knows; None where it does not."""
        return None

    def profile(self) -> Profile | None:
        """Profile, where the model itself knows it; None where it is to be measured."""
        return None

    def example(self, batch_size: int) -> dict[str, NDArray[Any]]:
        """Make a valid batch to warm up and to measure with.

        Zeros, or empty `bytes`, unless a model overrides it. One whose time depends on what is in
        the rows should: the profile is measured on these.
        """
        return {
            spec.name: np.full(
                (batch_size, *spec.shape), b"" if spec.datatype == "BYTES" else 0, spec.numpy_dtype
            )
            for spec in self.inputs
        }


def load_model(import_path: str, options: Mapping[str, Any], device: str) -> Model:
    """Import a model, make it with its options, and load it.

    Parameters
    ----------
    import_path : str
        ``package.module:Class``, or a short name of `MODELS`.
    options : mapping
        Keyword arguments of its constructor.
    device : str
        ``cpu`` or ``cuda``.

    Returns
    -------
    Model
        Ready for `forward`.

    Raises
    ------
    InvalidInputError
        The path leads to no model, the options do not fit, the device is unknown, or the model
        declares no proper inputs and outputs.
    StartError
        The model's own constructor or `load` failed; the message is its own.
    """
    if device not in DEVICES:
        raise InvalidInputError(f"device: must be {' or '.join(DEVICES)}, not {device!r}")
    model_class = _find_class(MODELS.get(import_path, import_path))
    _check_options(model_class, import_path, options)
    try:
        model = model_class(**options)
        model.load(device)
    except SojournError:
        raise
    except Exception as error:
        raise StartError(
            f"model {import_path} did not load: {type(error).__name__}: {error}"
        ) from error
    _check_specs(model, import_path)
    return model


def _find_class(import_path: str) -> type[Model]:
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
                f"model {import_path!r}: no module named {error.name!r} is on the Python path"
            ) from error
        raise InvalidInputError(f"model {import_path!r}: its import failed: {error}") from error
    except Exception as error:
        raise InvalidInputError(
            f"model {import_path!r}: its import failed: {type(error).__name__}: {error}"
        ) from error
    found = getattr(module, class_name, None)
    if found is None:
        raise InvalidInputError(f"model {import_path!r}: {module_name} has no {class_name!r}")
    if not (isinstance(found, type) and issubclass(found, Model)):
        raise InvalidInputError(
            f"model {import_path!r}: {class_name} is not a subclass of "
            "deployments.models.base.Model"
        )
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise InvalidInputError(f"model {import_path!r}: {class_name} does not define {missing}")
    return found


def _check_options(model_class: type[Model], import_path: str, options: Mapping[str, Any]) -> None:
    signature = inspect.signature(model_class)
    try:
        signature.bind(**options)
    except TypeError as error:
        allowed = ", ".join(signature.parameters) or "none"
        raise InvalidInputError(
            f"model {import_path}: options: {error}; its options: {allowed}"
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
            raise InvalidInputError(f"model {import_path}: {kind} name a tensor twice")
