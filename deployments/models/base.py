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

import difflib
import importlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
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
"""Import paths of the models that come with Sojourn, by short name."""

LoadWeights = Callable[[str | Path], Mapping[str, Any]]
"""What `Model.load` may ask for: it maps a source of weights to tensors by name."""

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
                self.network.load_state_dict(weights("resnet50.safetensors"), assign=True)

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


def load_model(
    import_path: str,
    options: Mapping[str, Any],
    device: str,
    weights: LoadWeights | None = None,
) -> Model:
    """Import a model class, construct the model with its options, and load it.

    Parameters
    ----------
    import_path : str
        ``package.module:Class``, or a short name from `MODELS`.
    options : mapping
        Keyword arguments of the constructor.
    device : str
        ``cpu`` or ``cuda``.
    weights : callable, optional
        What a `load` that asks for weights is given; by default
        `deployments.models.weights.load_weights`.

    Returns
    -------
    Model
        Ready for `forward`.

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
        _load(model, device, weights)
    _check_specs(model, import_path)
    return model


def make_model(import_path: str, options: Mapping[str, Any]) -> Model:
    """Import a model class and construct the model with its options, without loading it.

    Raises
    ------
    InvalidInputError
        The path does not name a model class, or the options do not match its constructor.
    StartError
        The constructor failed; the message contains that of the model.
    """
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
    """Check that a model for which the config names weights asks for them.

    Raises
    ------
    InvalidInputError
        It does not.
    """
    if weights is not None and not _asks_for_weights(model):
        raise InvalidInputError(
            f"model {import_path}: weights: its `load` must have a second parameter `weights`"
        )


def _asks_for_weights(model: Model | type[Model]) -> bool:
    return "weights" in inspect.signature(model.load).parameters


def _load(model: Model, device: str, weights: LoadWeights | None) -> None:
    """Load a model, with a source of weights if its `load` asks for one."""
    if not _asks_for_weights(model):
        model.load(device)
        return
    if weights is None:
        # Imported by name: it may need torch, and this module is used where torch may not be.
        weights = importlib.import_module("deployments.models.weights").load_weights
    load: Callable[..., None] = model.load
    load(device, weights=weights)


def find_model_class(import_path: str) -> type[Model]:
    """Import a model's class.

    Parameters
    ----------
    import_path : str
        ``package.module:Class``, or a short name from `MODELS`.

    Raises
    ------
    InvalidInputError
        The path does not name a model class that can be constructed.
    """
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
            f"model {import_path!r}: {class_name} is not a subclass of "
            "deployments.models.base.Model"
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
