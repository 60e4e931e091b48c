"""The Open Inference Protocol v2, the part that is about bytes: requests in, responses out.

JSON tensors, and the binary tensor extension that `tritonclient[http]` uses: raw little-endian
rows after the JSON header, whose length the header `Inference-Header-Content-Length` gives.
"""

import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from deployments.errors import BadRequestError, TooLargeError
from deployments.http.tensors import TensorCodec, codec_of
from deployments.models.base import TensorSpec

Tensors = Mapping[str, NDArray[Any]]

#: The longest deadline that a request may set: a day.
MOST_TIMEOUT_MS = 86_400_000
PRIORITIES = (0, 1)

_NO_BYTES = memoryview(b"")
_WHOLE = frozenset({int})
_OBJECTS = frozenset({dict})


class RequestedOutput(NamedTuple):
    """One output that the client wants, and whether as raw bytes."""

    codec: TensorCodec
    binary: bool


class InferenceRequest(NamedTuple):
    """A checked request; a tuple, because one is made per request.

    Attributes
    ----------
    inputs : mapping of str to ndarray
        One array per input of the model, rows first.
    rows : int
        How many rows each input has.
    outputs : tuple of RequestedOutput
        What to answer with.
    id : str or None
        The client's own name for the request, to be given back.
    deadline_ms : float or None
        How long after its arrival its answer is of use.
    priority : int
        0 is normal, 1 is high.
    """

    inputs: Tensors
    rows: int
    outputs: tuple[RequestedOutput, ...]
    id: str | None
    deadline_ms: float | None = None
    priority: int = 0


@dataclass(frozen=True)
class Signature:
    """What a model takes and gives, and how many rows one request may carry."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_rows: int

    @cached_property
    def input_codecs(self) -> Mapping[str, TensorCodec]:
        """What reads the inputs, by name."""
        return {spec.name: codec_of(spec) for spec in self.inputs}

    @cached_property
    def output_codecs(self) -> Mapping[str, TensorCodec]:
        """What writes the outputs, by name."""
        return {spec.name: codec_of(spec) for spec in self.outputs}

    @cached_property
    def all_outputs(self) -> Mapping[bool, tuple[RequestedOutput, ...]]:
        """All outputs, as raw bytes or not: what a request gets that names none."""
        codecs = self.output_codecs.values()
        return {
            binary: tuple(RequestedOutput(codec, binary) for codec in codecs)
            for binary in (False, True)
        }


def parse_request(
    body: bytes,
    header_length: int | None,
    signature: Signature,
    timeout_ms: float | None = None,
    priority: int = 0,
) -> InferenceRequest:
    """Parse and check the body of an infer request.

    Parameters
    ----------
    body : bytes
        JSON, followed by raw tensors where `header_length` is given.
    header_length : int or None
        Length of the JSON part; None: all of it.
    signature : Signature
        What the model takes and gives.
    timeout_ms : float, optional
        The deadline that came with the request, not in it; the earlier of the two counts.
    priority : int
        The priority that came with the request, not in it; the higher of the two counts.

    Raises
    ------
    BadRequestError
        Anything is wrong; the message says what, and what is allowed.
    TooLargeError
        More rows than `signature.max_rows`.
    """
    header: bytes | memoryview = body
    raw = _NO_BYTES
    if header_length is not None:
        if not 0 <= header_length <= len(body):
            raise BadRequestError(
                f"Inference-Header-Content-Length is {header_length}, the body has {len(body)}"
            )
        header, raw = memoryview(body)[:header_length], memoryview(body)[header_length:]
    try:
        content = orjson.loads(header)
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"the body is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise BadRequestError('the body must be a JSON object with "inputs"')
    request_id = content.get("id")
    if request_id is not None and not isinstance(request_id, str):
        raise BadRequestError('"id" must be a string')
    inputs, rows = _parse_inputs(content.get("inputs"), raw, signature)
    binary = False
    parameters = content.get("parameters")
    if parameters is not None:
        parameters = _checked_parameters(parameters, "the request")
        binary = _flag(parameters, "binary_data_output", False)
        timeout = parameters.get("timeout")
        if timeout is not None:
            timeout = check_timeout_ms(timeout, "parameter timeout")
            timeout_ms = timeout if timeout_ms is None else min(timeout, timeout_ms)
        if "priority" in parameters:
            wish = check_priority(parameters["priority"], "parameter priority")
            priority = max(priority, wish)
    wanted = content.get("outputs")
    outputs = _parse_outputs(wanted, binary, signature) if wanted else signature.all_outputs[binary]
    return InferenceRequest(inputs, rows, outputs, request_id, timeout_ms, priority)


def encode_response(
    model_name: str, model_version: str, request: InferenceRequest, outputs: Tensors
) -> tuple[bytes, int | None]:
    """Encode the answer to `request`.

    Returns
    -------
    body : bytes
    header_length : int or None
        Length of the JSON part, where raw tensors follow it.

    Raises
    ------
    BadRequestError
        The request wants an output as JSON that JSON cannot hold.
    """
    entries: list[dict[str, Any]] = []
    raw: list[memoryview | bytes] = []
    for codec, binary in request.outputs:
        spec = codec.spec
        array = np.ascontiguousarray(outputs[spec.name], codec.dtype)
        entry: dict[str, Any] = {
            "name": spec.name,
            "datatype": spec.datatype,
            "shape": array.shape,
        }
        if binary:
            data = codec.to_binary(array)
            entry["parameters"] = {"binary_data_size": len(data)}
            raw.append(data)
        else:
            entry["data"] = codec.to_json(array)
        entries.append(entry)
    content: dict[str, Any] = {"model_name": model_name, "model_version": model_version}
    if request.id is not None:
        content["id"] = request.id
    content["outputs"] = entries
    header = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return (b"".join((header, *raw)), len(header)) if raw else (header, None)


def check_timeout_ms(value: object, where: str) -> float:
    """Give `value` back where it can be a deadline: milliseconds, up to a day of them.

    Raises
    ------
    BadRequestError
        It cannot.
    """
    if type(value) not in (int, float) or not 0 < value <= MOST_TIMEOUT_MS:  # type: ignore[operator]
        raise BadRequestError(
            f"{where} must be a number of milliseconds over 0 and up to {MOST_TIMEOUT_MS}, "
            f"not {reprlib.repr(value)}"
        )
    return value  # type: ignore[return-value]


def check_priority(value: object, where: str) -> int:
    """Give `value` back where it is a priority.

    Raises
    ------
    BadRequestError
        It is none.
    """
    if type(value) is not int or value not in PRIORITIES:
        raise BadRequestError(f"{where} must be 0 (normal) or 1 (high), not {reprlib.repr(value)}")
    return value


def _parse_inputs(entries: object, raw: memoryview, signature: Signature) -> tuple[Tensors, int]:
    """Parse the inputs, and count their rows."""
    codecs = signature.input_codecs
    inputs: dict[str, NDArray[Any]] = {}
    offset = rows = 0
    for entry in _objects(entries, "inputs"):
        name = entry.get("name")
        codec = codecs.get(name) if isinstance(name, str) else None
        if codec is None:
            raise BadRequestError(
                f"there is no input {reprlib.repr(name)}: the model takes {_names(codecs)}"
            )
        name = codec.spec.name
        if name in inputs:
            raise BadRequestError(f"input {name!r} is given twice")
        shape = _parse_shape(entry, codec, signature.max_rows)
        if inputs and shape[0] != rows:
            raise codec.refusal(f"all inputs must have as many rows, not {rows} and {shape[0]}")
        rows = shape[0]
        size = None
        parameters = entry.get("parameters")
        if parameters is not None:
            parameters = _checked_parameters(parameters, f"input {name!r}")
            size = parameters.get("binary_data_size")
        if size is None:
            inputs[name] = codec.from_json(entry.get("data"), shape)
        elif "data" in entry:
            raise codec.refusal('"data" and binary_data_size exclude each other')
        else:
            inputs[name] = codec.from_binary(raw, offset, size, shape)
            offset += size
    if len(inputs) < len(codecs):
        missing = next(name for name in codecs if name not in inputs)
        raise BadRequestError(f"input {missing!r} is missing: the model takes {_names(codecs)}")
    if offset != len(raw):
        raise BadRequestError(f"{len(raw) - offset} bytes follow the last tensor")
    return inputs, rows


def _parse_shape(entry: Mapping[str, Any], codec: TensorCodec, max_rows: int) -> list[int]:
    """Check datatype and shape, and give the shape."""
    datatype, shape = entry.get("datatype"), entry.get("shape")
    if datatype != codec.spec.datatype:
        raise codec.refusal(f"datatype must be {codec.spec.datatype}, not {reprlib.repr(datatype)}")
    if (
        not isinstance(shape, list)
        or not shape
        # 2.0 and true would pass for whole numbers where they are only compared.
        or not _WHOLE.issuperset(map(type, shape))
        or shape[1:] != codec.row_shape
        or shape[0] < 1
    ):
        raise codec.refusal(
            f"shape must be {[-1, *codec.row_shape]} with at least one row, "
            f"not {reprlib.repr(shape)}"
        )
    if shape[0] > max_rows:
        raise TooLargeError(f"one request may carry {max_rows} rows, not {shape[0]}")
    return shape


def _parse_outputs(
    entries: object, binary: bool, signature: Signature
) -> tuple[RequestedOutput, ...]:
    codecs = signature.output_codecs
    outputs: dict[str, RequestedOutput] = {}
    for entry in _objects(entries, "outputs"):
        name = entry.get("name")
        codec = codecs.get(name) if isinstance(name, str) else None
        if codec is None:
            raise BadRequestError(
                f"there is no output {reprlib.repr(name)}: the model gives {_names(codecs)}"
            )
        name = codec.spec.name
        if name in outputs:
            raise BadRequestError(f"output {name!r} is asked for twice")
        wish, parameters = binary, entry.get("parameters")
        if parameters is not None:
            parameters = _checked_parameters(parameters, f"output {name!r}")
            if "classification" in parameters:
                raise BadRequestError(
                    f"output {name!r}: classification is not supported here: take the output "
                    "itself, and its largest values"
                )
            wish = _flag(parameters, "binary_data", binary)
        outputs[name] = RequestedOutput(codec, wish)
    return tuple(outputs.values())


def _objects(entries: object, name: str) -> list[dict[str, Any]]:
    if not isinstance(entries, list) or not _OBJECTS.issuperset(map(type, entries)):
        raise BadRequestError(f'"{name}" must be a list of objects')
    return entries


def _checked_parameters(parameters: object, where: str) -> dict[str, Any]:
    """Refuse what would change the answer and is not done here; ignore what is unknown."""
    if not isinstance(parameters, dict):
        raise BadRequestError(f'{where}: "parameters" must be an object')
    for name in parameters:
        if name.startswith("shared_memory_"):
            raise BadRequestError(
                f"{where}: shared memory is not supported here: send the tensor in the body"
            )
    return parameters


def _flag(parameters: Mapping[str, Any], name: str, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise BadRequestError(f"{name} must be true or false, not {reprlib.repr(value)}")
    return value


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
