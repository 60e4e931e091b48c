"""Parse requests of the Open Inference Protocol v2.

Tensors come as JSON or through the binary tensor extension, which `tritonclient[http]` uses: their
raw little-endian bytes follow the JSON part of the body, and the HTTP header
``Inference-Header-Content-Length`` gives the length of the JSON part.
"""

import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

from numpy.typing import NDArray

from deployments.batcher.queued_request import QueuedRequest
from deployments.errors import BadRequestError, TooLargeError
from deployments.http.request_body import load_json
from deployments.http.signature import (
    CHECKED_FROM_BYTES,
    MAX_JSON_BYTES,
    PRIORITY_HEADER,
    RequestedOutput,
    Signature,
    Tensors,
    check_parameters,
    check_timeout_us,
    read_flag,
)
from deployments.http.tensors import TensorCodec, booleans_possible

_EXAMPLE = "GET /sojourn/example is a valid request"
_EMPTY = memoryview(b"")
_ONLY_INT = frozenset({int})
_ONLY_DICT = frozenset({dict})


class InferenceRequest(QueuedRequest):
    """A checked inference request, from its parser to its answer.

    Each input is of shape ``(rows, *spec.shape)``. The response repeats the `id`. The client has no
    use for an answer later than `deadline_ms` after arrival. `priority` counts steps above the
    lowest.
    """

    __slots__ = ("deadline_ms", "id", "outputs")

    def __init__(
        self,
        inputs: Tensors,
        rows: int,
        outputs: tuple[RequestedOutput, ...],
        id: str | None,
        deadline_ms: float | None = None,
        priority: int = 0,
    ) -> None:
        QueuedRequest.__init__(self, inputs, rows, priority)
        self.outputs = outputs
        self.id = id
        self.deadline_ms = deadline_ms


def parse_request(
    body: bytes,
    header_length: int | None,
    signature: Signature,
    timeout_ms: float | None = None,
    priority: int = 0,
) -> InferenceRequest:
    """Parse and check the body of an inference request.

    It is JSON, followed by raw tensors if `header_length`, that of the JSON, is given. `timeout_ms`
    and `priority`, as `PriorityLevels` numbers it, are from the HTTP headers: if the body has such
    too, the earlier deadline and the higher priority apply.

    Raises
    ------
    BadRequestError
        The request is malformed. The message names the error and the allowed values.
    TooLargeError
        The request has too many rows, far more values, or more JSON than `MAX_JSON_BYTES`.
    """
    header, raw = _divide(body, header_length)
    if len(header) > MAX_JSON_BYTES:
        raise too_much_json()
    if len(header) >= CHECKED_FROM_BYTES:
        signature.json_guard.check(bytes(header))
    content = load_json(header)
    if not isinstance(content, dict):
        raise BadRequestError(f'the body must be a JSON object with "inputs"; {_EXAMPLE}')
    booleans = header_length is not None or booleans_possible(body)
    return _check_request(content, raw, signature, booleans, timeout_ms, priority)


def too_much_json() -> TooLargeError:
    return TooLargeError(
        f"JSON bodies are limited to {MAX_JSON_BYTES} bytes; send binary tensor data"
    )


def _divide(body: bytes, header_length: int | None) -> tuple[bytes | memoryview, memoryview]:
    """Return the JSON part of a body, and the raw tensors."""
    if header_length is None:
        return body, _EMPTY
    if not 0 <= header_length <= len(body):
        raise BadRequestError(
            f"Inference-Header-Content-Length must be at most the length of the body, "
            f"{len(body)}, not {header_length}"
        )
    return memoryview(body)[:header_length], memoryview(body)[header_length:]


def _check_request(
    content: Mapping[str, Any],
    raw: memoryview,
    signature: Signature,
    booleans: bool,
    timeout_ms: float | None,
    priority: int,
) -> InferenceRequest:
    request_id = content.get("id")
    if request_id is not None and not isinstance(request_id, str):
        raise BadRequestError('"id" must be a string')
    inputs, rows = _parse_inputs(content.get("inputs"), raw, signature, booleans)
    priorities = signature.priorities
    if priority:
        priorities.check(priority, PRIORITY_HEADER)
    binary, in_body = False, 0
    parameters = content.get("parameters")
    if parameters is not None:
        parameters = check_parameters(parameters, "the request")
        binary = read_flag(parameters, "binary_data_output", False)
        timeout = parameters.get("timeout")
        if timeout is not None:
            in_body_ms = check_timeout_us(timeout, "parameter timeout")
            if in_body_ms is not None:
                timeout_ms = in_body_ms if timeout_ms is None else min(in_body_ms, timeout_ms)
        if "priority" in parameters:
            in_body = priorities.check(parameters["priority"], "parameter priority")
    named = content.get("outputs")
    outputs = signature.all_outputs[binary]
    if named is not None:
        outputs = _parse_outputs(named, binary, signature) or outputs
    steps = priorities.steps(priority, in_body)
    return InferenceRequest(inputs, rows, outputs, request_id, timeout_ms, steps)


def _parse_inputs(
    entries: object, raw: memoryview, signature: Signature, booleans: bool
) -> tuple[Tensors, int]:
    """Return the inputs by name, and their rows; the JSON may contain true if `booleans`."""
    codecs = signature.input_codecs
    inputs: dict[str, NDArray[Any]] = {}
    offset = rows = 0
    for entry in _check_objects(entries, "inputs"):
        codec = _codec_of(entry, codecs)
        name = codec.spec.name
        if name in inputs:
            raise BadRequestError(f"input {name!r} is given more than once")
        shape = _parse_shape(entry, codec, signature.max_rows)
        if inputs and shape[0] != rows:
            raise codec.bad_request(
                f"all inputs must have the same number of rows, not {rows} and {shape[0]}"
            )
        rows = shape[0]
        size = None
        parameters = entry.get("parameters")
        if parameters is not None:
            parameters = check_parameters(parameters, f"input {name!r}")
            size = parameters.get("binary_data_size")
        if size is None:
            inputs[name] = codec.from_json(entry.get("data"), shape, booleans)
        elif "data" in entry:
            raise codec.bad_request('give either "data" or binary_data_size, not both')
        else:
            inputs[name] = codec.from_binary(raw, offset, size, shape)
            offset += size
    if len(inputs) < len(codecs):
        missing = next(name for name in codecs if name not in inputs)
        raise BadRequestError(
            f"input {missing!r} is missing: the model's inputs are {_list_names(codecs)}"
        )
    if offset != len(raw):
        raise BadRequestError(f"{len(raw) - offset} unexpected bytes follow the last tensor")
    return inputs, rows


def _codec_of(entry: Mapping[str, Any], codecs: Mapping[str, TensorCodec]) -> TensorCodec:
    name = entry.get("name")
    codec = codecs.get(name) if isinstance(name, str) else None
    if codec is None:
        raise BadRequestError(
            f"unknown input {reprlib.repr(name)}: the model's inputs are {_list_names(codecs)}"
        )
    return codec


def _parse_shape(entry: Mapping[str, Any], codec: TensorCodec, max_rows: int) -> list[int]:
    """Check the datatype and the shape of an input, and return the shape."""
    datatype, shape = entry.get("datatype"), entry.get("shape")
    if datatype != codec.spec.datatype:
        raise codec.bad_request(
            f"datatype must be {codec.spec.datatype}, not {reprlib.repr(datatype)}"
        )
    if (
        not isinstance(shape, list)
        or not shape
        # Comparisons alone would accept 2.0 and true as whole numbers.
        or not _ONLY_INT.issuperset(map(type, shape))
        or not codec.accepts(shape[1:])
        or shape[0] < 1
    ):
        raise codec.wrong_shape(shape)
    if shape[0] > max_rows:
        raise TooLargeError(f"a request may have at most {max_rows} rows, not {shape[0]}")
    return shape


def _parse_outputs(
    entries: object, binary: bool, signature: Signature
) -> tuple[RequestedOutput, ...]:
    codecs = signature.output_codecs
    outputs: dict[str, RequestedOutput] = {}
    for entry in _check_objects(entries, "outputs"):
        name = entry.get("name")
        codec = codecs.get(name) if isinstance(name, str) else None
        if codec is None:
            raise BadRequestError(
                f"unknown output {reprlib.repr(name)}: the model's outputs are "
                f"{_list_names(codecs)}"
            )
        name = codec.spec.name
        if name in outputs:
            raise BadRequestError(f"output {name!r} is requested more than once")
        as_binary, parameters = binary, entry.get("parameters")
        if parameters is not None:
            parameters = check_parameters(parameters, f"output {name!r}")
            if "classification" in parameters:
                raise BadRequestError(
                    f"output {name!r}: classification is not supported; request the output "
                    "itself and take its largest values"
                )
            as_binary = read_flag(parameters, "binary_data", binary)
        outputs[name] = RequestedOutput(codec, as_binary)
    return tuple(outputs.values())


def _check_objects(entries: object, name: str) -> list[dict[str, Any]]:
    if not isinstance(entries, list) or not _ONLY_DICT.issuperset(map(type, entries)):
        raise BadRequestError(f'"{name}" must be a list of objects; {_EXAMPLE}')
    return entries


def _list_names(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
