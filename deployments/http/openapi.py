"""The JSON Schemas of requests and responses, from the signature of a model.

They state every rule of a request but two, which JSON Schema cannot express: the number of values
in a tensor's "data" is the product of its "shape", and all inputs have the same number of rows.
Lists whose length may be any are not compared with each other, either.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from deployments.http.signature import MAX_TIMEOUT_MS, MAX_TIMEOUT_US, Signature
from deployments.http.tensors import LARGEST_BF16
from deployments.models.base import TensorSpec

Schema = dict[str, Any]

OBJECT: Schema = {"type": "object"}
BOOLEAN: Schema = {"type": "boolean"}
STRING: Schema = {"type": "string"}
ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": STRING},
    "additionalProperties": False,
}
TIMEOUT_MS: Schema = {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_TIMEOUT_MS}
_BINARY_SIZE: Schema = {"type": "integer", "minimum": 0}
#: It is for raw tensors after the JSON part; this is about bodies of JSON alone.
_NO_BINARY_SIZE: Schema = {
    "not": {"required": ["binary_data_size"], "properties": {"binary_data_size": _BINARY_SIZE}}
}


def request_schema(signature: Signature) -> Schema:
    """Return the schema of a request whose body is JSON alone."""
    names = [spec.name for spec in signature.outputs]
    output = {
        **OBJECT,
        "required": ["name"],
        "properties": {
            "name": {"enum": names},
            "parameters": _parameters_schema(
                {"not": {"required": ["classification"]}}, binary_data=BOOLEAN
            ),
        },
    }
    return {
        **OBJECT,
        "required": ["inputs"],
        "properties": {
            "id": {"type": ["string", "null"]},
            "parameters": _parameters_schema(
                binary_data_output=BOOLEAN,
                timeout={
                    "type": ["number", "null"],
                    "minimum": 0,
                    "maximum": MAX_TIMEOUT_US,
                    "description": "Deadline in microseconds after arrival; 0: none",
                },
                priority=priority_schema(signature),
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


def priority_schema(signature: Signature) -> Schema:
    levels = signature.priorities.levels
    return {"type": "integer", "minimum": 0, "maximum": levels}


def _tensor_list(tensors: list[Schema]) -> Schema:
    items = tensors[0] if len(tensors) == 1 else {"oneOf": tensors}
    return {"type": "array", "items": items, "maxItems": len(tensors)}


def _has_name_of(spec: TensorSpec) -> Schema:
    return {"properties": {"name": {"type": "string", "const": spec.name}}, "required": ["name"]}


def _input_schema(spec: TensorSpec, signature: Signature) -> Schema:
    value = _value_schema(spec)
    shortest = [max(1, length) for length in spec.shape]
    flat = {
        "type": "array",
        "items": value,
        "minItems": math.prod(shortest),
        "maxItems": math.prod(spec.max_shape) * signature.max_rows,
    }
    nested = value
    for least, most in reversed([*zip(shortest, spec.max_shape, strict=True)]):
        nested = {"type": "array", "items": nested, "minItems": least, "maxItems": most}
    nested = {"type": "array", "items": nested, "minItems": 1, "maxItems": signature.max_rows}
    return {
        **_tensor_schema(spec, signature),
        "required": ["name", "datatype", "shape", "data"],
        "properties": {
            **_tensor_schema(spec, signature)["properties"],
            "data": {"anyOf": [flat, nested]} if spec.shape else flat,
            "parameters": _parameters_schema(_NO_BINARY_SIZE),
        },
    }


def response_schema(model_name: str, signature: Signature) -> Schema:
    """Return the schema of a response whose body is JSON alone."""
    outputs = [_output_schema(spec, signature) for spec in signature.outputs]
    return {
        **OBJECT,
        "required": ["model_name", "model_version", "outputs"],
        "properties": {
            "model_name": {"type": "string", "const": model_name},
            "model_version": STRING,
            "id": STRING,
            "outputs": _tensor_list(outputs),
        },
    }


def _output_schema(spec: TensorSpec, signature: Signature) -> Schema:
    tensor = _tensor_schema(spec, signature)
    tensor["properties"]["data"] = {"type": "array", "items": _value_schema(spec)}
    tensor["properties"]["parameters"] = exact_object(binary_data_size=_BINARY_SIZE)
    return tensor


def _tensor_schema(spec: TensorSpec, signature: Signature) -> Schema:
    return {
        **OBJECT,
        "required": ["name", "datatype", "shape"],
        "properties": {
            "name": {"type": "string", "const": spec.name},
            "datatype": {"type": "string", "const": spec.datatype},
            "shape": _shape_schema(spec, signature),
        },
    }


def _shape_schema(spec: TensorSpec, signature: Signature) -> Schema:
    dimensions = 1 + len(spec.shape)
    lengths = [(1, signature.max_rows)]
    lengths += [(1, spec.max_dim) if length < 0 else (length, length) for length in spec.shape]
    words = [f"{least} to {most}" if least < most else f"{most}" for least, most in lengths[1:]]
    schema: Schema = {
        "type": "array",
        "minItems": dimensions,
        "maxItems": dimensions,
        "description": f"Rows, from 1 to {signature.max_rows}"
        + "".join(f", then {word}" for word in words),
    }
    if spec.is_variable:
        return {**schema, "prefixItems": [_whole_number(*bounds) for bounds in lengths]}
    # Not every generator of clients knows `prefixItems`; the number of values tells the rest.
    return {**schema, "items": _whole_number(1, max(most for _, most in lengths))}


def _whole_number(least: int, most: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


def _value_schema(spec: TensorSpec) -> Schema:
    dtype = spec.numpy_dtype
    if dtype.kind == "O":
        return {"type": "string"}
    if dtype.kind == "b":
        return BOOLEAN
    if dtype.kind == "f":
        largest = LARGEST_BF16 if spec.datatype == "BF16" else float(np.finfo(dtype).max)
        return {"type": "number", "minimum": -largest, "maximum": largest}
    limits = np.iinfo(dtype)
    return {"type": "integer", "minimum": int(limits.min), "maximum": int(limits.max)}


def _parameters_schema(more: Schema | None = None, **known: Schema) -> Schema:
    return {
        "type": ["object", "null"],
        "properties": known,
        "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
        "propertyNames": {"not": {"pattern": "^shared_memory_"}},
        **(more or {}),
    }


def exact_object(**properties: Schema) -> Schema:
    return {**OBJECT, "required": list(properties), "properties": properties}


#: JSON, followed by raw tensors.
_BYTES: Schema = {"type": "string", "format": "binary"}
#: What the paths without schemas of their own answer, and what they are for.
_READ_PATHS = {
    "/v2": "Name, version and extensions of the server",
    "/v2/health/live": "Whether the server is running",
    "/v2/health/ready": "Whether the model can answer requests",
    "/v2/models": "The name of the model",
    "{model}": "Inputs and outputs of the model",
    "{model}/config": "The model's configuration, as Triton names it",
    "{model}/stats": "Totals of requests and batches, as Triton names them",
    "{model}/ready": "Whether the model can answer requests",
    "{model}/versions/{version}": "Inputs and outputs of the model",
    "{model}/versions/{version}/ready": "Whether the model can answer requests",
    "/sojourn/policy": "The batching policy in force, and why it was chosen",
    "/sojourn/autoscaler": "The autoscaler's last hundred decisions and their reasons",
    "/sojourn/example": "A valid request of one row",
    "/sojourn/openapi.json": "This document",
}
_ERRORS = {
    "400": "The request is malformed; the message says what is wrong and what is allowed",
    "401": "The service wants a token, and the request has none, or one that is unknown",
    "403": "The request's token does not allow this",
    "408": "The request did not arrive in time",
    "413": "The body, or its number of rows, exceeds the limit",
    "415": "The Content-Encoding is not gzip, deflate or identity",
    "429": "The token has used its rate, or too many batches failed; try again later",
    "431": "The request line and the header fields are too large",
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
    signature : Signature
        The inputs and outputs of the model.
    max_body_bytes : int
        Maximum size of a request's body.
    example : mapping
        A valid request.

    Returns
    -------
    dict
        An OpenAPI 3.1 document.
    """
    model = f"/v2/models/{model_name}"
    paths: dict[str, Schema] = {}
    for template, summary in _READ_PATHS.items():
        responses = {"200": _json_response("OK", "Object")}
        if template.endswith("/ready"):
            responses["503"] = _json_response("Not ready: no model, or its device hangs", "Object")
        path = template.format(model=model, version=model_version)
        paths[path] = {"get": {"summary": summary, "responses": responses}}
    for path, media, summary in (
        ("/sojourn/", "text/html", "The console: a page that shows the service live"),
        ("/sojourn/events", "text/event-stream", "What the console shows, once a second"),
    ):
        responses = {"200": {"description": "OK", "content": {media: {"schema": STRING}}}}
        paths[path] = {"get": {"summary": summary, "responses": responses}}
    paths["/v2/repository/index"] = {
        "post": {
            "summary": "The model, and whether it is ready",
            "responses": {"200": _json_response("OK", "RepositoryIndex")},
        }
    }
    paths["/sojourn/plan"] = {
        "post": {
            "summary": "The replicas that another SLA, load or price would need",
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": _ref("Object")}},
            },
            "responses": {"200": _json_response("OK", "Object")},
        }
    }
    for path, name in (
        (f"{model}/infer", "infer"),
        (f"{model}/versions/{model_version}/infer", "inferVersion"),
    ):
        paths[path] = {"post": _infer_operation(name, signature, max_body_bytes, example)}
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
                "Error": ERROR,
                "Object": OBJECT,
                "RepositoryIndex": {"type": "array", "items": OBJECT},
                "InferRequest": request_schema(signature),
                "InferResponse": response_schema(model_name, signature),
            }
        },
    }


def tensor_metadata(specs: Sequence[TensorSpec]) -> list[Mapping[str, Any]]:
    """Return the protocol's metadata of tensors; -1 stands for any number of rows, or length."""
    return [
        {"name": spec.name, "datatype": spec.datatype, "shape": [-1, *spec.shape]}
        | ({"parameters": {"max_dim": spec.max_dim}} if spec.is_variable else {})
        for spec in specs
    ]


def _infer_operation(
    name: str, signature: Signature, max_body_bytes: int, example: Mapping[str, Any]
) -> Schema:
    def header(name: str, schema: Schema, description: str) -> Schema:
        return {"name": name, "in": "header", "schema": schema, "description": description}

    length: Schema = {"type": "integer", "minimum": 0}
    codings: Schema = {"type": "string", "enum": ["gzip", "deflate", "identity", ""]}
    responses = {
        "200": {
            "description": "The outputs",
            "content": {
                "application/json": {"schema": _ref("InferResponse")},
                "application/octet-stream": {"schema": _BYTES},
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
            "Unknown parameters are ignored. The parameter timeout is in microseconds, and 0 means "
            "none. If a header and a parameter both set a deadline, the "
            "earlier one applies; of two priorities, the higher one."
        ),
        "parameters": [
            header("X-Request-Id", {"type": "string"}, "The response repeats this header"),
            header(
                "X-Request-Timeout-Ms", TIMEOUT_MS, "Deadline in ms after the request's arrival"
            ),
            header(
                "X-Request-Priority",
                priority_schema(signature),
                f"1 is the highest, {signature.priorities.levels} the lowest; 0, the default, "
                f"is {signature.priorities.levels}",
            ),
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
                "application/json": {"schema": _ref("InferRequest"), "example": example},
                "application/octet-stream": {"schema": _BYTES},
            },
        },
        "responses": responses,
    }


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _json_response(description: str, schema: str) -> Schema:
    return {
        "description": description,
        "content": {"application/json": {"schema": _ref(schema)}},
    }
