"""The JSON Schemas of requests and responses, from the signature of a model.

They state every rule of a request but two, which JSON Schema cannot express: the number of values
in a tensor's "data" is the product of its "shape", and all inputs have the same number of rows.
Lists whose length may be any are not compared with each other, either.
"""

import math
from typing import Any

import numpy as np

from deployments.http.datatypes import LARGEST_BF16
from deployments.http.parameters import MAX_TIMEOUT_MS, MAX_TIMEOUT_US
from deployments.http.signature import Signature
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
    """Return the schema of a priority."""
    levels = signature.priorities.levels
    return {"type": "integer", "minimum": 0, "maximum": levels}


def _tensor_list(tensors: list[Schema]) -> Schema:
    """Return the schema of a list of tensors in any order."""
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
    """Return the schema of one value of a tensor."""
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
    """Return the schema of an object with these properties, all required."""
    return {**OBJECT, "required": list(properties), "properties": properties}
