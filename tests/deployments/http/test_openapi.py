"""The OpenAPI document describes the model, and the service keeps to it."""

import asyncio
import copy
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import jsonschema
import numpy as np
import orjson
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from deployments.config.replica_args import ModelConfig
from deployments.config.user_config import parse_user_config
from deployments.errors import BadRequestError, TooLargeError
from deployments.http.app import InferenceApp
from deployments.http.inference_protocol import parse_request
from deployments.http.openapi import openapi_document
from deployments.http.signature import Signature
from deployments.models.base import Model, TensorSpec
from deployments.serving.service import InferenceService
from tests.support.models.doubles_service import PROFILE, USER_CONFIG

pytestmark = pytest.mark.slow

MAX_ROWS = USER_CONFIG["limits"]["max_rows_per_request"]
INFER = "/v2/models/mixed/infer"


class Mixed(Model):
    """Two inputs and two outputs of different types."""

    inputs = (TensorSpec("x", "FP32", (2,)), TensorSpec("k", "UINT8"))
    outputs = (TensorSpec("y", "FP32", (2,)), TensorSpec("odd", "BOOL"))

    def load(self, device: str) -> None: ...

    def forward(self, batch: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        return {"y": batch["x"] / 2, "odd": batch["k"] % 2 == 1}


class Client:
    """Sends requests to the real app over the real service, on its own event loop."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._service = self._runner.run(self._start())
        transport = httpx.ASGITransport(app=InferenceApp(self._service, "1"))
        self._client = httpx.AsyncClient(transport=transport, base_url="http://test")

    async def _start(self) -> InferenceService:
        config = ModelConfig(name="mixed", import_path="unused:Unused", max_batch_size=4)
        service = InferenceService(config, Mixed(), PROFILE)
        await service.configure(parse_user_config(USER_CONFIG))
        return service

    def request(self, method: str, url: str, **options: Any) -> httpx.Response:
        return self._runner.run(self._client.request(method, url, **options))

    def close(self) -> None:
        self._runner.run(self._client.aclose())
        self._runner.run(self._service.close())
        self._runner.close()


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    made = Client()
    yield made
    made.close()


ARGUMENTS: dict[str, Any] = {
    "model_name": "mixed",
    "model_version": "1",
    "signature": Signature(Mixed.inputs, Mixed.outputs, max_rows=MAX_ROWS),
    "max_body_bytes": 2000,
    "example": {},
    "server_version": "1",
    "root_path": "",
}
DOCUMENT = openapi_document(**ARGUMENTS)
SCHEMAS = DOCUMENT["components"]["schemas"]


def test_the_served_document_is_that_of_the_model(client: Client) -> None:
    served = client.request("GET", "/sojourn/openapi.json").json()
    assert served["components"] == DOCUMENT["components"]
    assert list(served["paths"]) == list(DOCUMENT["paths"])
    infer = served["paths"][INFER]["post"]
    example = infer["requestBody"]["content"]["application/json"]["example"]
    assert client.request("POST", INFER, json=example).status_code == 200


def test_the_document_is_valid_openapi() -> None:
    schemathesis.openapi.from_dict(copy.deepcopy(DOCUMENT)).validate()


@settings(derandomize=True, max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    rows=st.integers(1, MAX_ROWS),
    nested=st.booleans(),
    swapped=st.booleans(),
    outputs=st.sampled_from([None, [], ["y"], ["odd", "y"]]),
    data=st.data(),
)
def test_every_valid_request_matches_the_document_and_is_answered(
    client: Client, rows: int, nested: bool, swapped: bool, outputs: list[str], data: st.DataObject
) -> None:
    x = data.draw(npst.arrays(np.float32, (rows, 2), elements=st.floats(-9, 9, width=16)))
    k = data.draw(npst.arrays(np.uint8, (rows,)))
    inputs = [
        {
            "name": spec.name,
            "datatype": spec.datatype,
            "shape": list(array.shape),
            "data": (array if nested else array.ravel()).tolist(),
        }
        for spec, array in zip(Mixed.inputs, (x, k), strict=True)
    ]
    content: dict[str, Any] = {"inputs": inputs[::-1] if swapped else inputs}
    if outputs is not None:
        content["outputs"] = [{"name": name} for name in outputs]
    jsonschema.validate(content, SCHEMAS["InferRequest"])
    answer = client.request("POST", INFER, json=content)
    assert answer.status_code == 200
    jsonschema.validate(answer.json(), SCHEMAS["InferResponse"])
    returned = {output["name"]: output["data"] for output in answer.json()["outputs"]}
    assert list(returned) == (outputs or ["y", "odd"])
    assert np.array(returned["y"], np.float32).tolist() == (x / 2).ravel().tolist()


@pytest.mark.parametrize(
    "datatype", ["BOOL", "UINT8", "INT64", "FP16", "BF16", "FP32", "FP64", "BYTES"]
)
@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
def test_the_document_allows_exactly_what_the_parser_accepts(
    datatype: str, shape: tuple[int, ...]
) -> None:
    check_agreement(TensorSpec("x", datatype, shape), shape)


@pytest.mark.parametrize("length", range(5))
def test_the_document_allows_exactly_the_lengths_that_the_parser_accepts(length: int) -> None:
    check_agreement(TensorSpec("x", "FP32", (2, -1), max_dim=3), (2, length))


def check_agreement(spec: TensorSpec, shape: tuple[int, ...]) -> None:
    """Check that requests with rows of a shape are valid for the document as for the parser."""
    datatype = spec.datatype
    signature = Signature((spec,), (spec,), max_rows=2)
    schema = openapi_document(
        model_name="m",
        model_version="1",
        signature=signature,
        max_body_bytes=1,
        example={},
        server_version="1",
        root_path="/prefix",
    )["components"]["schemas"]["InferRequest"]
    validator = jsonschema.Draft202012Validator(schema)
    entries = (True, 0, -1, 256, 2**63, 1.5, 1e39, "text", None)
    for rows, entry in itertools.product(range(4), entries):
        data = np.full((rows, *shape), entry, object)
        for form in (data.tolist(), data.ravel().tolist()):
            tensor = {"name": "x", "datatype": datatype, "shape": [rows, *shape], "data": form}
            content = {"inputs": [tensor]}
            try:
                parse_request(orjson.dumps(content), None, signature)
            except (BadRequestError, TooLargeError):
                assert not validator.is_valid(content)
            else:
                validator.validate(content)
