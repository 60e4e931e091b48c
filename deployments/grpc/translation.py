"""Translate inference between the protocol's gRPC messages and HTTP with binary tensors."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from deployments.errors import BadRequestError
from deployments.grpc.open_inference_pb2 import ModelInferResponse

#: The field of typed contents for each datatype, and how a value looks in binary tensor data.
_CONTENTS = {
    "BOOL": ("bool_contents", "?"),
    "INT8": ("int_contents", "i1"),
    "INT16": ("int_contents", "<i2"),
    "INT32": ("int_contents", "<i4"),
    "INT64": ("int64_contents", "<i8"),
    "UINT8": ("uint_contents", "u1"),
    "UINT16": ("uint_contents", "<u2"),
    "UINT32": ("uint_contents", "<u4"),
    "UINT64": ("uint64_contents", "<u8"),
    "FP32": ("fp32_contents", "<f4"),
    "FP64": ("fp64_contents", "<f8"),
}


def http_body(request: Any) -> tuple[bytes, int]:
    """Return the body of the HTTP request for a `ModelInferRequest`, and the length of its JSON.

    `BadRequestError` if there is not one value for each input.
    """
    raw = request.raw_input_contents
    if not raw:
        raw = [_raw(tensor) for tensor in request.inputs]
    elif len(raw) != len(request.inputs):
        raise BadRequestError(
            f"raw_input_contents must have one entry for each of the {len(request.inputs)} inputs, "
            f"not {len(raw)}"
        )
    content: dict[str, Any] = {
        "parameters": {**_parameters(request.parameters), "binary_data_output": True},
        "inputs": [
            {
                "name": tensor.name,
                "datatype": tensor.datatype,
                "shape": list(tensor.shape),
                "parameters": {**_parameters(tensor.parameters), "binary_data_size": len(data)},
            }
            for tensor, data in zip(request.inputs, raw, strict=True)
        ],
    }
    if request.id:
        content["id"] = request.id
    if request.outputs:
        content["outputs"] = [
            {
                "name": output.name,
                "parameters": {**_parameters(output.parameters), "binary_data": True},
            }
            for output in request.outputs
        ]
    head = orjson.dumps(content)
    return b"".join((head, *raw)), len(head)


def grpc_response(body: bytes, header_length: int) -> Any:
    """Return the `ModelInferResponse` for the body of an HTTP answer with binary tensors."""
    content = orjson.loads(memoryview(body)[:header_length])
    response = ModelInferResponse(
        model_name=content["model_name"],
        model_version=content.get("model_version", ""),
        id=content.get("id", ""),
    )
    begin = header_length
    for output in content["outputs"]:
        end = begin + output["parameters"]["binary_data_size"]
        response.outputs.add(
            name=output["name"], datatype=output["datatype"], shape=output["shape"]
        )
        response.raw_output_contents.append(body[begin:end])
        begin = end
    return response


def _parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: getattr(value, value.WhichOneof("parameter_choice"))
        for name, value in parameters.items()
        if value.WhichOneof("parameter_choice")
    }


def _raw(tensor: Any) -> bytes:
    """Return a tensor's typed contents as binary tensor data."""
    if tensor.datatype == "BYTES":
        values = tensor.contents.bytes_contents
        return b"".join(len(value).to_bytes(4, "little") + value for value in values)
    if tensor.datatype not in _CONTENTS:
        raise BadRequestError(
            f"input {tensor.name!r}: send {tensor.datatype} in raw_input_contents; typed contents "
            f"are for BYTES, {', '.join(_CONTENTS)}"
        )
    field, dtype = _CONTENTS[tensor.datatype]
    try:
        return np.array([*getattr(tensor.contents, field)], dtype).tobytes()
    except OverflowError:
        raise BadRequestError(
            f"input {tensor.name!r}: a value of {field} does not fit {tensor.datatype}"
        ) from None
