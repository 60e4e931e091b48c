"""The Open Inference Protocol v2, the part that is about bytes: requests in, responses out.

JSON tensors, and the binary tensor extension that `tritonclient[http]` uses: raw little-endian
rows after the JSON header, whose length the header `Inference-Header-Content-Length` gives.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from deployments.models.base import TensorSpec
from sojourn.errors import BadRequestError, TooLargeError

Tensors = Mapping[str, NDArray[Any]]

#: What a JSON number may be, by the kind of the datatype it is for.
_JSON_KINDS = {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """One output that the client wants, and whether as raw bytes."""

    spec: TensorSpec
    binary: bool


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """A checked request.

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
    """

    inputs: Tensors
    rows: int
    outputs: tuple[RequestedOutput, ...]
    id: str | None


@dataclass(frozen=True)
class Signature:
    """What a model takes and gives, and how many rows one request may carry."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_rows: int


def parse_request(body: bytes, header_length: int | None, signature: Signature) -> InferenceRequest:
    """Parse and check the body of an infer request.

    Parameters
    ----------
    body : bytes
        JSON, followed by raw tensors where `header_length` is given.
    header_length : int or None
        Length of the JSON part; None: all of it.
    signature : Signature
        What the model takes and gives.

    Raises
    ------
    BadRequestError
        Anything is wrong; the message says what, and what is allowed.
    TooLargeError
        More rows than `signature.max_rows`.
    """
    if header_length is None:
        header, raw = body, memoryview(b"")
    else:
        if not 0 <= header_length <= len(body):
            raise BadRequestError(
                f"Inference-Header-Content-Length is {header_length}, the body has {len(body)}"
            )
        header, raw = body[:header_length], memoryview(body)[header_length:]
    try:
        content = orjson.loads(header)
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"the body is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise BadRequestError('the body must be a JSON object with "inputs"')
    request_id = content.get("id")
    if request_id is not None and not isinstance(request_id, str):
        raise BadRequestError('"id" must be a string')
    inputs = _parse_inputs(content.get("inputs"), raw, signature)
    rows = len(next(iter(inputs.values())))
    parameters = content.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise BadRequestError('"parameters" must be an object')
    binary = parameters.get("binary_data_output") is True
    outputs = _parse_outputs(content.get("outputs"), binary, signature)
    return InferenceRequest(inputs, rows, outputs, request_id)


def encode_response(
    model_name: str, model_version: str, request: InferenceRequest, outputs: Tensors
) -> tuple[bytes, int | None]:
    """Encode the answer to `request`.

    Returns
    -------
    body : bytes
    header_length : int or None
        Length of the JSON part, where raw tensors follow it.
    """
    entries: list[dict[str, Any]] = []
    raw: list[bytes] = []
    for wanted in request.outputs:
        spec = wanted.spec
        array = np.ascontiguousarray(outputs[spec.name], dtype=spec.numpy_dtype)
        entry: dict[str, Any] = {
            "name": spec.name,
            "datatype": spec.datatype,
            "shape": array.shape,
        }
        if wanted.binary:
            data = array.tobytes()
            entry["parameters"] = {"binary_data_size": len(data)}
            raw.append(data)
        else:
            # JSON knows no half precision.
            entry["data"] = (
                array.astype(np.float32) if array.dtype == np.float16 else array
            ).ravel()
        entries.append(entry)
    content: dict[str, Any] = {"model_name": model_name, "model_version": model_version}
    if request.id is not None:
        content["id"] = request.id
    content["outputs"] = entries
    header = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return (b"".join((header, *raw)), len(header)) if raw else (header, None)


def _parse_inputs(entries: object, raw: memoryview, signature: Signature) -> Tensors:
    specs = {spec.name: spec for spec in signature.inputs}
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise BadRequestError('"inputs" must be a list of objects')
    inputs: dict[str, NDArray[Any]] = {}
    offset = 0
    for entry in entries:
        name = entry.get("name")
        if not isinstance(name, str) or name not in specs:
            raise BadRequestError(f"there is no input {name!r}: the model takes {_names(specs)}")
        if name in inputs:
            raise BadRequestError(f"input {name!r} is given twice")
        spec = specs[name]
        shape = _shape(entry, spec, signature.max_rows)
        parameters = entry.get("parameters")
        size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
        if size is None:
            inputs[name] = _json_tensor(entry.get("data"), shape, spec)
        else:
            inputs[name] = _raw_tensor(raw, offset, size, shape, spec)
            offset += size
    missing = [name for name in specs if name not in inputs]
    if missing:
        raise BadRequestError(f"input {missing[0]!r} is missing: the model takes {_names(specs)}")
    if offset != len(raw):
        raise BadRequestError(f"{len(raw) - offset} bytes follow the last tensor")
    rows = {name: len(array) for name, array in inputs.items()}
    if len(set(rows.values())) > 1:
        raise BadRequestError(f"all inputs must have as many rows, not {rows}")
    return inputs


def _shape(entry: Mapping[str, Any], spec: TensorSpec, max_rows: int) -> tuple[int, ...]:
    """Check datatype and shape, and give the shape."""
    datatype, shape = entry.get("datatype"), entry.get("shape")
    if datatype != spec.datatype:
        raise BadRequestError(
            f"input {spec.name!r}: datatype must be {spec.datatype}, not {datatype!r}"
        )
    allowed = [-1, *spec.shape]
    if (
        not isinstance(shape, list)
        or any(type(length) is not int for length in shape)
        or tuple(shape[1:]) != spec.shape
        or not shape
        or shape[0] < 1
    ):
        raise BadRequestError(
            f"input {spec.name!r}: shape must be {allowed} with at least one row, not {shape!r}"
        )
    if shape[0] > max_rows:
        raise TooLargeError(f"one request may carry {max_rows} rows, not {shape[0]}")
    return tuple(shape)


def _json_tensor(data: object, shape: tuple[int, ...], spec: TensorSpec) -> NDArray[Any]:
    if not isinstance(data, list):
        raise BadRequestError(f'input {spec.name!r}: "data" must be a list')
    dtype = spec.numpy_dtype
    try:
        array = np.array(data)
    except ValueError:
        raise BadRequestError(f'input {spec.name!r}: "data" is ragged') from None
    if array.dtype.kind not in _JSON_KINDS[dtype.kind]:
        wanted = {"f": "numbers", "b": "true and false"}.get(dtype.kind, "whole numbers in range")
        raise BadRequestError(f'input {spec.name!r}: "data" must hold {wanted} only')
    if array.shape != shape:
        if array.ndim != 1 or array.size != math.prod(shape):
            raise BadRequestError(
                f'input {spec.name!r}: "data" must have the shape {list(shape)} or be flat with '
                f"{math.prod(shape)} entries, not {list(array.shape)}"
            )
        array = array.reshape(shape)
    if dtype.kind in "iu" and array.size:
        limits = np.iinfo(dtype)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise BadRequestError(
                f"input {spec.name!r}: {spec.datatype} holds {limits.min} to {limits.max} only"
            )
    with np.errstate(over="ignore"):
        return _finite(array.astype(dtype, copy=False), spec)


def _raw_tensor(
    raw: memoryview, offset: int, size: object, shape: tuple[int, ...], spec: TensorSpec
) -> NDArray[Any]:
    wanted = math.prod(shape) * spec.numpy_dtype.itemsize
    if size != wanted or type(size) is not int:
        raise BadRequestError(
            f"input {spec.name!r}: binary_data_size must be {wanted} for shape {list(shape)}, "
            f"not {size!r}"
        )
    if offset + wanted > len(raw):
        raise BadRequestError(f"input {spec.name!r}: the body ends within its tensor")
    array = np.frombuffer(raw, spec.numpy_dtype, math.prod(shape), offset)
    return _finite(array.reshape(shape), spec)


def _finite(array: NDArray[Any], spec: TensorSpec) -> NDArray[Any]:
    if not spec.allow_nan and array.dtype.kind == "f" and not np.isfinite(array).all():
        raise BadRequestError(f"input {spec.name!r}: NaN and infinity are not allowed")
    return array


def _parse_outputs(
    entries: object, binary: bool, signature: Signature
) -> tuple[RequestedOutput, ...]:
    specs = {spec.name: spec for spec in signature.outputs}
    if entries is None or entries == []:
        return tuple(RequestedOutput(spec, binary) for spec in signature.outputs)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise BadRequestError('"outputs" must be a list of objects')
    outputs: dict[str, RequestedOutput] = {}
    for entry in entries:
        name = entry.get("name")
        if not isinstance(name, str) or name not in specs:
            raise BadRequestError(f"there is no output {name!r}: the model gives {_names(specs)}")
        if name in outputs:
            raise BadRequestError(f"output {name!r} is asked for twice")
        parameters = entry.get("parameters")
        wish = parameters.get("binary_data", binary) if isinstance(parameters, dict) else binary
        outputs[name] = RequestedOutput(specs[name], wish is True)
    return tuple(outputs.values())


def _names(specs: Mapping[str, TensorSpec] | Sequence[str]) -> str:
    return ", ".join(repr(name) for name in specs)
