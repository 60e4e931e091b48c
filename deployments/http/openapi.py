"""Build a replica's OpenAPI document from the signature of its model.

The document states every rule of a request but two, which JSON Schema cannot express: the number of
values in a tensor's "data" is the product of its "shape", and all inputs have the same number of
rows.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from deployments.http.inference_protocol import Signature
from deployments.http.parameters import MAX_TIMEOUT_MS, PRIORITIES
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
_TIMEOUT: Schema = {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_TIMEOUT_MS}
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
    "400": "The request is malformed; the message says what is wrong and what is allowed",
    "413": "The body, or its number of rows, exceeds the limit",
    "415": "The Content-Encoding is not gzip, deflate or identity",
    "429": "The batch failed and the retry queue is full; try again later",
    "500": "The model failed on this request",
    "503": "This replica has no room or cannot meet the deadline; another replica may",
    "504": "The request's deadline passed",
}


def openapi_document(
    *,
    model_name: str,
    model_version: str,
    signature: Signature,
    max_body_bytes: int,
    example: Mapping[str, Any],
    server_version: str,
    root_path: str,
) -> Schema:
    """Return the OpenAPI document of a replica.

    Parameters
    ----------
    model_name, model_version : str
    signature : Signature
        The inputs and outputs of the model.
    max_body_bytes : int
        Maximum size of a request's body.
    example : mapping
        A valid request.
    server_version : str
    root_path : str
        Prefix of all paths.

    Returns
    -------
    dict
        An OpenAPI 3.1 document.
    """
    model = f"/v2/models/{model_name}"
    version = f"{model}/versions/{model_version}"
    readiness = {
        "200": _json_response("Ready", "Ready"),
        "503": _json_response("Not ready: the model is not loaded, or its device hangs", "Ready"),
    }
    gets = {
        "/v2": ("server", "Name, version and extensions of the server", _ok_response("Server")),
        "/v2/health/live": ("live", "Whether the server is running", _ok_response("Live")),
        "/v2/health/ready": ("ready", "Whether the model can answer requests", readiness),
        model: ("model", "Inputs and outputs of the model", _ok_response("Model")),
        f"{model}/ready": ("modelReady", "Whether the model can answer requests", readiness),
        version: ("modelVersion", "Inputs and outputs of the model", _ok_response("Model")),
        f"{version}/ready": (
            "modelVersionReady",
            "Whether the model can answer requests",
            readiness,
        ),
        "/sojourn/policy": (
            "policy",
            "The batching policy in force, and why it was chosen",
            _ok_response("Object"),
        ),
        "/sojourn/autoscaler": (
            "autoscaler",
            "The autoscaler's last hundred decisions and their reasons",
            _ok_response("Autoscaler"),
        ),
        "/sojourn/example": ("example", "A valid request of one row", _ok_response("Request")),
        "/sojourn/openapi.json": ("openapi", "This document", _ok_response("Object")),
    }
    paths: dict[str, Schema] = {
        path: {"get": {"operationId": name, "summary": summary, "responses": responses}}
        for path, (name, summary, responses) in gets.items()
    }
    for path, name in ((f"{model}/infer", "infer"), (f"{version}/infer", "inferVersion")):
        paths[path] = {"post": _infer_operation(name, max_body_bytes, example)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"{model_name} (Open Inference Protocol)",
            "version": server_version,
        },
        "servers": [{"url": root_path or "/"}],
        "paths": paths,
        "components": {
            "schemas": {
                "Error": _ERROR,
                "Object": _OBJECT,
                "Server": _exact_object(
                    name={"const": "sojourn"},
                    version={"const": server_version},
                    extensions={"type": "array", "items": {"type": "string"}},
                ),
                "Live": _exact_object(live={"const": True}),
                "Ready": {**_OBJECT, "required": ["ready"], "properties": {"ready": _BOOLEAN}},
                "Autoscaler": {
                    **_OBJECT,
                    "required": ["newest", "decisions"],
                    "properties": {
                        "newest": {"oneOf": [_DECISION, {"type": "null"}]},
                        "decisions": {"type": "array", "items": _DECISION},
                    },
                },
                "Model": _exact_object(
                    name={"const": model_name},
                    versions={"const": [model_version]},
                    platform={"type": "string"},
                    inputs={"const": tensor_metadata(signature.inputs)},
                    outputs={"const": tensor_metadata(signature.outputs)},
                ),
                "Request": _request_schema(signature),
                "Response": {
                    **_OBJECT,
                    "required": ["model_name", "model_version", "outputs"],
                    "properties": {
                        "model_name": {"const": model_name},
                        "model_version": {"const": model_version},
                        "id": {"type": "string"},
                        "outputs": _tensor_list(
                            [_output_schema(s, signature) for s in signature.outputs]
                        ),
                    },
                },
            }
        },
    }


def tensor_metadata(specs: Sequence[TensorSpec]) -> list[Mapping[str, Any]]:
    """Return the protocol's metadata of tensors; -1 stands for any number of rows."""
    return [
        {"name": spec.name, "datatype": spec.datatype, "shape": [-1, *spec.shape]} for spec in specs
    ]


def _infer_operation(name: str, max_body_bytes: int, example: Mapping[str, Any]) -> Schema:
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
                    "description": "Length of the JSON part in bytes, if raw tensors follow it",
                }
            },
        },
        **{status: _json_response(description, "Error") for status, description in _ERRORS.items()},
    }
    return {
        "operationId": name,
        "summary": "Infer",
        "description": (
            f"The body may have at most {max_body_bytes} bytes, before and after decompression. "
            "Unknown parameters are ignored. If a header and a parameter both set a deadline, the "
            "earlier one applies; of two priorities, the higher one."
        ),
        "parameters": [
            header("X-Request-Id", {"type": "string"}, "The response repeats this header"),
            header("X-Request-Timeout-Ms", _TIMEOUT, "Deadline in ms after the request's arrival"),
            header("X-Request-Priority", _PRIORITY, "0 is normal, 1 is high"),
            header("Content-Encoding", codings, "Compression of the body"),
            header(
                "Inference-Header-Content-Length",
                length,
                "Length of the JSON part of the decompressed body, if raw tensors follow it",
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


def _request_schema(signature: Signature) -> Schema:
    names = [spec.name for spec in signature.outputs]
    output = {
        **_OBJECT,
        "required": ["name"],
        "properties": {
            "name": {"enum": names},
            "parameters": _parameters_schema(binary_data=_BOOLEAN, classification=False),
        },
    }
    return {
        **_OBJECT,
        "required": ["inputs"],
        "properties": {
            "id": {"type": ["string", "null"]},
            "parameters": _parameters_schema(
                binary_data_output=_BOOLEAN,
                timeout={**_TIMEOUT, "type": ["number", "null"]},
                priority=_PRIORITY,
            ),
            "inputs": {
                **_tensor_list([_input_schema(spec, signature) for spec in signature.inputs]),
                "allOf": [{"contains": _has_name_of(spec)} for spec in signature.inputs],
            },
            "outputs": {
                "type": ["array", "null"],
                "items": output,
                "maxItems": len(names),
            },
        },
    }


def _tensor_list(tensors: list[Schema]) -> Schema:
    """Return the schema of a list of tensors in any order."""
    items = tensors[0] if len(tensors) == 1 else {"oneOf": tensors}
    return {"type": "array", "items": items, "maxItems": len(tensors)}


def _has_name_of(spec: TensorSpec) -> Schema:
    return {"properties": {"name": {"const": spec.name}}, "required": ["name"]}


def _input_schema(spec: TensorSpec, signature: Signature) -> Schema:
    value = _value_schema(spec)
    size = math.prod(spec.shape)
    flat = {
        "type": "array",
        "items": value,
        "minItems": size,
        "maxItems": size * signature.max_rows,
    }
    nested = value
    for length in reversed(spec.shape):
        nested = {"type": "array", "items": nested, "minItems": length, "maxItems": length}
    nested = {"type": "array", "items": nested, "minItems": 1, "maxItems": signature.max_rows}
    return {
        **_tensor_schema(spec, signature),
        "required": ["name", "datatype", "shape", "data"],
        "properties": {
            **_tensor_schema(spec, signature)["properties"],
            "data": {"anyOf": [flat, nested]} if spec.shape else flat,
            # binary_data_size is for raw tensors after the JSON part; this is a body of JSON alone.
            "parameters": _parameters_schema(binary_data_size={"type": "null"}),
        },
    }


def _output_schema(spec: TensorSpec, signature: Signature) -> Schema:
    value = _value_schema(spec)
    if spec.numpy_dtype.kind == "f":
        value = {"type": ["number", "null"], "description": "null: NaN or infinite"}
    tensor = _tensor_schema(spec, signature)
    tensor["properties"]["data"] = {"type": "array", "items": value}
    tensor["properties"]["parameters"] = _exact_object(binary_data_size=_BINARY_SIZE)
    return tensor


def _tensor_schema(spec: TensorSpec, signature: Signature) -> Schema:
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


def _value_schema(spec: TensorSpec) -> Schema:
    """Return the schema of one value of a tensor."""
    dtype = spec.numpy_dtype
    if dtype.kind == "O":
        return {"type": "string"}
    if dtype.kind == "b":
        return _BOOLEAN
    if dtype.kind == "f":
        largest = float(np.finfo(dtype).max)
        return {"type": "number", "minimum": -largest, "maximum": largest}
    limits = np.iinfo(dtype)
    return {"type": "integer", "minimum": int(limits.min), "maximum": int(limits.max)}


def _parameters_schema(**known: Schema | bool) -> Schema:
    return {
        "type": ["object", "null"],
        "properties": known,
        "patternProperties": _NO_SHARED_MEMORY,
    }


def _exact_object(**properties: Schema) -> Schema:
    return {**_OBJECT, "required": list(properties), "properties": properties}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _json_response(description: str, schema: str) -> Schema:
    return {
        "description": description,
        "content": {"application/json": {"schema": _ref(schema)}},
    }


def _ok_response(schema: str) -> dict[str, Schema]:
    return {"200": _json_response("OK", schema)}
