"""Outcomes of requests: what clients are told, what is counted, and what is logged."""

import json
import logging
import time
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import orjson
import pytest

from deployments.errors import BadRequestError, ModelError
from deployments.http.answers import BINARY, JSON, Outcomes
from deployments.http.inference_protocol import InferenceRequest, parse_request
from deployments.http.service import Service
from deployments.http.signature import Signature
from deployments.models.base import TensorSpec
from deployments.observability.inference_statistics import BatchTotals
from deployments.observability.request_info import RequestInfo

SIGNATURE = Signature((TensorSpec("x", "FP32"),), (TensorSpec("y", "FP32"),), max_rows=2)


def service() -> Service:
    """Return a service that keeps the rows which it counts as answered."""
    rows: list[int] = []
    return cast(
        Service,
        SimpleNamespace(
            model_name="m",
            model_version="1",
            rows=rows,
            count_answered=lambda answered, _: rows.append(answered),
        ),
    )


def ask(*, binary: bool = False) -> InferenceRequest:
    """Return a request of two rows."""
    outputs = [{"name": "y", "parameters": {"binary_data": binary}}]
    entry = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}
    body = orjson.dumps({"inputs": [entry], "outputs": outputs})
    return parse_request(body, None, SIGNATURE)


def counted(outcomes: Outcomes) -> dict[str, Any]:
    return outcomes.totals.describe("m", "1", BatchTotals())


def test_outputs_are_answered_in_the_requested_form_and_their_rows_counted() -> None:
    outcomes, y, asked = Outcomes("m"), {"y": np.array([3.0, 4.0], np.float32)}, service()
    status, body, headers = outcomes.success(ask(), y, asked, time.monotonic())
    assert (status, headers) == (200, [JSON])
    assert orjson.loads(body)["outputs"][0]["data"] == [3.0, 4.0]
    status, body, headers = outcomes.success(ask(binary=True), y, asked, time.monotonic())
    assert (status, headers[0]) == (200, BINARY)
    assert body[int(headers[1][1]) :] == y["y"].tobytes()
    assert counted(outcomes)["inference_count"] == 4
    assert cast(Any, asked).rows == [2, 2]


def test_outputs_that_cannot_be_encoded_are_the_models_fault_and_not_counted() -> None:
    outcomes, asked = Outcomes("m"), service()
    with pytest.raises(ModelError, match="cannot be encoded"):
        outcomes.success(ask(), {"y": cast(Any, object())}, asked, time.monotonic())
    assert counted(outcomes)["inference_count"] == 0
    assert cast(Any, asked).rows == []


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (BadRequestError("x is missing"), 400, "x is missing"),
        (KeyError("a secret of the model"), 500, "internal error while answering this request"),
    ],
)
def test_only_errors_made_for_clients_are_explained_to_them(
    error: Exception, status: int, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "sojourn.requests"):
        answer = Outcomes("m").failure(error, RequestInfo(b"r-7"), time.monotonic())
    assert (answer[0], orjson.loads(answer[1])) == (status, {"error": told})
    (line,) = [one.message for one in caplog.records if one.name == "sojourn.requests"]
    logged = json.loads(line)
    assert (logged["status"], logged["error"], logged["request_id"]) == (status, told, "r-7")
