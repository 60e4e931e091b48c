"""What a replica serves, as an OpenAPI document that is made from its model's signature.

JSON Schema cannot say that a tensor's "data" has as many entries as its "shape" multiplies to, nor
that all inputs have as many rows; all else that a request must fulfil is in the document.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from deployments.http.inference_protocol import MOST_TIMEOUT_MS, PRIORITIES, Signature
from deployments.models.base import TensorSpec

Schema = dict[str, Any]

_ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string"}},
    "additionalProperties": False,
}
_OBJECT: Schema = {"type": "object"}
_BOOLEAN: Schema = {"type": "boolean"}
_TIMEOUT: Schema = {"type": "number", "exclusiveMinimum": 0, "maximum": MOST_TIMEOUT_MS}
_PRIORITY: Schema = {"type": "integer", "enum": list(PRIORITIES)}
_NO_SHARED_MEMORY: Schema = {"^shared_memory_": False}
_BINARY_SIZE: Schema = {"type": "integer", "minimum": 0}
_DECISION: Schema = {
    "type": "object",
    "required": ["time_s", "target_replicas", "replicas", "reason"],
    "properties": {
        "time_s": {"type": "number"},
        "target_replicas": {"type": "integer"},
        "replicas": {"type": "integer"},
        "reason": {"type": "string"},
    },
}
_ERRORS = {
    "400": "The request is wrong; the message says what, and what is allowed",
    "413": "The body, or its number of rows, is over the limit",
    "415": "Content-Encoding is neither gzip, deflate nor identity",
    "429": "Its batch failed, as too many do here: try again later",
    "500": "The model failed on this request",
    "503": "No room, or the deadline cannot be met here: another replica may have room",
    "504": "The request's deadline passed",
}


def document(
    *,
    model_name: str,
    model_version: str,
    signature: Signature,
    max_body_bytes: int,
    example: Mapping[str, Any],
    server_version: str,
    root_path: str,
) -> Schema:
    """Describe what a replica serves.

    Parameters
    ----------
    model_name, model_version : str
        Of its model.
    signature : Signature
        What the model takes and gives.
    max_body_bytes : int
        How large a body may be.
    example : mapping
        A valid request.
    server_version : str
        Version of the server.
    root_path : str
        What stands before all paths.

    Returns
    -------
    dict
        An OpenAPI 3.1 document.
    """
    model = f"/v2/models/{model_name}"
    version = f"{model}/versions/{model_version}"
    ready = {
        "200": _json("Ready", "Ready"),
        "503": _json("Not ready: the model is not loaded, or its device is stuck", "Ready"),
    }
    gets = {
        "/v2": ("server", "Name, version and extensions of the server", _ok("Server")),
        "/v2/health/live": ("live", "Whether the process answers", _ok("Live")),
        "/v2/health/ready": ("ready", "Whether the model can answer", ready),
        model: ("model", "What the model takes and gives", _ok("Model")),
        f"{model}/ready": ("modelReady", "Whether the model can answer", ready),
        version: ("modelVersion", "What the model takes and gives", _ok("Model")),
        f"{version}/ready": ("modelVersionReady", "Whether the model can answer", ready),
        "/sojourn/policy": ("policy", "The batching policy in force, explained", _ok("Object")),
        "/sojourn/autoscaler": (
            "autoscaler",
            "The autoscaler's latest hundred decisions, and why",
            _ok("Autoscaler"),
        ),
        "/sojourn/example": ("example", "A valid request of one row", _ok("Request")),
        "/sojourn/openapi.json": ("openapi", "This document", _ok("Object")),
    }
    paths: dict[str, Schema] = {
        path: {"get": {"operationId": name, "summary": summary, "responses": responses}}
        for path, (name, summary, responses) in gets.items()
    }
    for path, name in ((f"{model}/infer", "infer"), (f"{version}/infer", "inferVersion")):
        paths[path] = {"post": _infer(name, max_body_bytes, example)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"{model_name}, by the Open Inference Protocol",
            "version": server_version,
        },
        "servers": [{"url": root_path or "/"}],
        "paths": paths,
        "components": {
            "schemas": {
                "Error": _ERROR,
                "Object": _OBJECT,
                "Server": _record(
                    name={"const": "sojourn"},
                    version={"const": server_version},
                    extensions={"type": "array", "items": {"type": "string"}},
                ),
                "Live": _record(live={"const": True}),
                "Ready": {**_OBJECT, "required": ["ready"], "properties": {"ready": _BOOLEAN}},
                "Autoscaler": {
                    **_OBJECT,
                    "required": ["newest", "decisions"],
                    "properties": {
                        "newest": {"oneOf": [_DECISION, {"type": "null"}]},
                        "decisions": {"type": "array", "items": _DECISION},
                    },
                },
                "Model": _record(
                    name={"const": model_name},
                    versions={"const": [model_version]},
                    platform={"type": "string"},
                    inputs={"const": tensor_metadata(signature.inputs)},
                    outputs={"const": tensor_metadata(signature.outputs)},
                ),
                "Request": _request(signature),
                "Response": {
                    **_OBJECT,
                    "required": ["model_name", "model_version", "outputs"],
                    "properties": {
                        "model_name": {"const": model_name},
                        "model_version": {"const": model_version},
                        "id": {"type": "string"},
                        "outputs": _list_of([_output(s, signature) for s in signature.outputs]),
                    },
                },
            }
        },
    }


def tensor_metadata(specs: Sequence[TensorSpec]) -> list[Mapping[str, Any]]:
    """Describe tensors as the protocol does; -1 stands for any number of rows."""
    return [
        {"name": spec.name, "datatype": spec.datatype, "shape": [-1, *spec.shape]} for spec in specs
    ]


def _infer(name: str, max_body_bytes: int, example: Mapping[str, Any]) -> Schema:
    def header(name: str, schema: Schema, description: str) -> Schema:
        return {"name": name, "in": "header", "schema": schema, "description": description}

    length: Schema = {"type": "integer", "minimum": 0}
    codings: Schema = {"type": "string", "enum": ["gzip", "deflate", "identity", ""]}
    responses = {
        "200": {
            "description": "The outputs",
            "content": {
                "application/json": {"schema": _ref("Response")},
                "application/octet-stream": {},
            },
            "headers": {
                "Inference-Header-Content-Length": {
                    "schema": length,
                    "description": "Length of the JSON part, where raw tensors follow it",
                }
            },
        },
        **{status: _json(description, "Error") for status, description in _ERRORS.items()},
    }
    return {
        "operationId": name,
        "summary": "Infer",
        "description": (
            f"A body has {max_body_bytes} bytes at most, packed and unpacked. Unknown parameters "
            "are ignored. Of a deadline, or a priority, given twice, the stricter counts."
        ),
        "parameters": [
            header("X-Request-Id", {"type": "string"}, "Comes back in the same header"),
            header("X-Request-Timeout-Ms", _TIMEOUT, "How long the answer is of use, in ms"),
            header("X-Request-Priority", _PRIORITY, "0 is normal, 1 is high"),
            header("Content-Encoding", codings, "How the body is packed"),
            header(
                "Inference-Header-Content-Length",
                length,
                "Length of the JSON part of the unpacked body, where raw tensors follow it",
            ),
        ],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": _ref("Request"), "example": example},
                "application/octet-stream": {},
            },
        },
        "responses": responses,
    }


def _request(signature: Signature) -> Schema:
    names = [spec.name for spec in signature.outputs]
    output = {
        **_OBJECT,
        "required": ["name"],
        "properties": {
            "name": {"enum": names},
            "parameters": _parameters(binary_data=_BOOLEAN, classification=False),
        },
    }
    return {
        **_OBJECT,
        "required": ["inputs"],
        "properties": {
            "id": {"type": ["string", "null"]},
            "parameters": _parameters(
                binary_data_output=_BOOLEAN,
                timeout={**_TIMEOUT, "type": ["number", "null"]},
                priority=_PRIORITY,
            ),
            "inputs": {
                **_list_of([_input(spec, signature) for spec in signature.inputs]),
                "allOf": [{"contains": _named(spec)} for spec in signature.inputs],
            },
            "outputs": {
                "type": ["array", "null"],
                "items": output,
                "maxItems": len(names),
            },
        },
    }


def _list_of(tensors: list[Schema]) -> Schema:
    """Describe a list of tensors, in any order."""
    items = tensors[0] if len(tensors) == 1 else {"oneOf": tensors}
    return {"type": "array", "items": items, "maxItems": len(tensors)}


def _named(spec: TensorSpec) -> Schema:
    return {"properties": {"name": {"const": spec.name}}, "required": ["name"]}


def _input(spec: TensorSpec, signature: Signature) -> Schema:
    entry = _entry(spec)
    size = math.prod(spec.shape)
    flat = {
        "type": "array",
        "items": entry,
        "minItems": size,
        "maxItems": size * signature.max_rows,
    }
    nested = entry
    for length in reversed(spec.shape):
        nested = {"type": "array", "items": nested, "minItems": length, "maxItems": length}
    nested = {"type": "array", "items": nested, "minItems": 1, "maxItems": signature.max_rows}
    return {
        **_tensor(spec, signature),
        "required": ["name", "datatype", "shape", "data"],
        "properties": {
            **_tensor(spec, signature)["properties"],
            "data": {"anyOf": [flat, nested]} if spec.shape else flat,
            # The size of what follows the JSON part; a body of JSON alone has nothing there.
            "parameters": _parameters(binary_data_size={"type": "null"}),
        },
    }


def _output(spec: TensorSpec, signature: Signature) -> Schema:
    entry = _entry(spec)
    if spec.numpy_dtype.kind == "f":
        entry = {"type": ["number", "null"], "description": "null: NaN or infinite"}
    tensor = _tensor(spec, signature)
    tensor["properties"]["data"] = {"type": "array", "items": entry}
    tensor["properties"]["parameters"] = _record(binary_data_size=_BINARY_SIZE)
    return tensor


def _tensor(spec: TensorSpec, signature: Signature) -> Schema:
    rows = {"type": "integer", "minimum": 1, "maximum": signature.max_rows}
    return {
        **_OBJECT,
        "required": ["name", "datatype", "shape"],
        "properties": {
            "name": {"const": spec.name},
            "datatype": {"const": spec.datatype},
            "shape": {
                "type": "array",
                "prefixItems": [rows, *({"const": length} for length in spec.shape)],
                "minItems": 1 + len(spec.shape),
                "maxItems": 1 + len(spec.shape),
            },
        },
    }


def _entry(spec: TensorSpec) -> Schema:
    """One entry of a tensor, as JSON."""
    dtype = spec.numpy_dtype
    if dtype.kind == "O":
        return {"type": "string"}
    if dtype.kind == "b":
        return _BOOLEAN
    if dtype.kind == "f":
        most = float(np.finfo(dtype).max)
        return {"type": "number", "minimum": -most, "maximum": most}
    limits = np.iinfo(dtype)
    return {"type": "integer", "minimum": int(limits.min), "maximum": int(limits.max)}


def _parameters(**known: Schema | bool) -> Schema:
    return {
        "type": ["object", "null"],
        "properties": known,
        "patternProperties": _NO_SHARED_MEMORY,
    }


def _record(**properties: Schema) -> Schema:
    return {**_OBJECT, "required": list(properties), "properties": properties}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(description: str, schema: str) -> Schema:
    return {
        "description": description,
        "content": {"application/json": {"schema": _ref(schema)}},
    }


def _ok(schema: str) -> dict[str, Schema]:
    return {"200": _json("Told", schema)}
