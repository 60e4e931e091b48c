"""Requests with known answers, and their comparison with the service's answers."""

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from policy.errors import InvalidInputError, file_errors

TOLERANCE = 1e-4
"""Largest difference between two floats that still counts as equal: rounding depends on the size of
the batch that a request was in."""

_FLOATS = ("FP16", "FP32", "FP64", "BF16")


@dataclass(frozen=True)
class Case:
    """A request of the Open Inference Protocol v2 whose answer is known.

    `outputs` are the tensors of the right answer, with flat data; without any it is not known.
    """

    body: bytes
    outputs: tuple[Mapping[str, Any], ...]
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})

    def fault(self, answer: bytes) -> str | None:
        """Return the error in the body of an HTTP 200 response, or None if it is right."""
        given = _outputs(answer)
        if given is None:
            return "not an inference response: JSON with a list of named outputs"
        for expected in self.outputs:
            fault = _tensor_fault(expected, given.get(expected["name"]))
            if fault is not None:
                return f"output {expected['name']}: {fault}"
        return None


def _outputs(answer: bytes) -> dict[str, Mapping[str, Any]] | None:
    try:
        tensors = orjson.loads(answer)["outputs"]
        return {tensor["name"]: tensor for tensor in tensors} or None
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None


def _tensor_fault(expected: Mapping[str, Any], given: Mapping[str, Any] | None) -> str | None:
    if given is None:
        return "missing"
    for key in ("datatype", "shape"):
        if given.get(key) != expected[key]:
            return f"{key} is {given.get(key)!r}, not {expected[key]!r}"
    data = given.get("data")
    if not isinstance(data, list) or len(data) != len(expected["data"]):
        return f"data must be {len(expected['data'])} values"
    if expected["datatype"] not in _FLOATS:
        return None if data == expected["data"] else f"{data} instead of {expected['data']}"
    if not all(isinstance(value, int | float) for value in data):
        return "data must be numbers"
    error = max((abs(a - b) for a, b in zip(data, expected["data"], strict=True)), default=0.0)
    # `not <=` makes NaN an error.
    if not error <= TOLERANCE or not math.isfinite(sum(data)):
        return f"off by {error:.3g}, more than {TOLERANCE:g}"
    return None


def write_cases(path: Path, cases: Sequence[Mapping[str, Any]]) -> None:
    """Write requests as JSON lines, with their right "outputs"."""
    option = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
    path.write_bytes(b"".join(orjson.dumps(case, option=option) for case in cases))


def read_cases(path: Path) -> list[Case]:
    """Read requests and answers, written by `write_cases` or by a user.

    Parameters
    ----------
    path : Path
        One JSON object per line: the ``inputs`` of a request and, if wanted, its ``parameters``. An
        input may have ``base64``, a list of its BYTES values, in place of ``data``; it is sent raw.
        ``outputs``, the right answer, are optional.

    Raises
    ------
    InvalidInputError
        The file cannot be read or is empty, or a line is malformed; the message names the line.
    """
    with file_errors(f"{path}: cannot read"):
        lines = path.read_bytes().splitlines()
    cases = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            cases.append(parse_case(orjson.loads(line)))
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
            raise InvalidInputError(
                f'{path}: line {number}: must be {{"inputs": […], "outputs": […]}} with tensors '
                "in the form of the Open Inference Protocol"
            ) from None
    if not cases:
        raise InvalidInputError(f"{path}: no requests")
    return cases


def parse_case(fields: Mapping[str, Any]) -> Case:
    """Return one request of `read_cases`.

    Raise `KeyError`, `TypeError`, `ValueError` or `AttributeError` if it is malformed.
    """
    inputs, outputs = fields["inputs"], tuple(fields.get("outputs", ()))
    request = {"inputs": inputs}
    if "parameters" in fields:
        request["parameters"] = dict(fields["parameters"])
    if not inputs or not all({"name", "datatype", "shape", "data"} <= o.keys() for o in outputs):
        raise KeyError
    body, headers = _encoded(request)
    return Case(body, outputs, headers)


def _encoded(request: dict[str, Any]) -> tuple[bytes, dict[str, str]]:
    """Return the body and headers of a request; inputs in base64 become raw ones."""
    raw = b""
    inputs = []
    for tensor in request["inputs"]:
        if "base64" in tensor:
            values = [base64.b64decode(value, validate=True) for value in tensor["base64"]]
            content = b"".join(len(value).to_bytes(4, "little") + value for value in values)
            parameters = {**tensor.get("parameters", {}), "binary_data_size": len(content)}
            kept = {key: value for key, value in tensor.items() if key != "base64"}
            tensor = {**kept, "parameters": parameters}
            raw += content
        inputs.append(tensor)
    head = orjson.dumps({**request, "inputs": inputs})
    if not raw:
        return head, {"Content-Type": "application/json"}
    return head + raw, {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": str(len(head)),
    }
