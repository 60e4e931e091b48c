"""Encode responses of the Open Inference Protocol v2."""

from typing import Any

import numpy as np
import orjson

from deployments.errors import BadRequestError, ModelError
from deployments.http.inference_protocol import InferenceRequest
from deployments.http.signature import Tensors

#: orjson writes NaN and infinity so.
_NULL = b"null"


def encode_response(
    model_name: str, model_version: str, request: InferenceRequest, outputs: Tensors
) -> tuple[bytes, int | None]:
    """Encode the response to `request`.

    Parameters
    ----------
    model_name, model_version : str
    request : InferenceRequest
    outputs : mapping of str to ndarray, each of shape (request.rows, *spec.shape)
        The model's outputs, by name.

    Returns
    -------
    body : bytes
    header_length : int or None
        Length of the JSON part in bytes. None if the whole body is JSON.

    Raises
    ------
    BadRequestError
        The request wants an output as JSON that JSON cannot hold.
    ModelError
        It wants one as JSON that has NaN or infinity, which the model does not declare.
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
    if _NULL in header:
        _check_finite(request, outputs)
    return (b"".join((header, *raw)), len(header)) if raw else (header, None)


def _check_finite(request: InferenceRequest, outputs: Tensors) -> None:
    """Check the outputs that are wanted as JSON for what it has no numbers for."""
    for codec, binary in request.outputs:
        spec = codec.spec
        array = np.asarray(outputs[spec.name])
        if binary or array.dtype.kind != "f":
            continue
        if np.isfinite(codec.to_json(array.astype(codec.dtype))).all():
            continue
        problem = f"output {spec.name!r} has NaN or infinity, which JSON cannot hold"
        if spec.allow_nan:
            raise BadRequestError(f"{problem}; request it with binary_data true")
        raise ModelError(f"{problem}, and its model does not say that it may")
