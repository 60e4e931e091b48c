"""The JSON dialects of the servers."""

import json

import numpy as np
import pytest

from benchmarks.peers.models import HOSTED, stack, unstack
from benchmarks.peers.protocols import (
    BatchOfObjects,
    Objects,
    OpenInference,
    Workload,
    example_rows,
)
from deployments.http.inference_protocol import parse_request
from deployments.http.signature import Signature


def random_rows(name: str, count: int) -> dict[str, np.ndarray]:
    if name == "minilm":
        return example_rows(name, count)
    random = np.random.default_rng(1)
    return {
        spec.name: random.uniform(0, 16, (count, *spec.shape)).astype(np.float32)
        for spec in HOSTED[name].load().inputs
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "emulated", "digits", "minilm"])
def test_only_the_answer_to_the_request_itself_is_right(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "minilm":
        pytest.importorskip("tokenizers")
        monkeypatch.setattr("deployments.models.sentences.MEASURE_BUDGET_S", 0.0)
    model, rows = HOSTED[name].load(), random_rows(name, 3)
    for dialect, unwrap, wrap in (
        (Objects("/"), lambda body: body, lambda answer: answer),
        (BatchOfObjects("/"), lambda body: body["rows"][0], lambda answer: [answer]),
    ):
        workload = Workload(name, dialect, rows)
        asked = [unwrap(json.loads(body)) for body in workload.bodies]
        answers = unstack(model.forward(stack(model, asked)))
        for number in range(3):
            for other in range(3):
                body = json.dumps(wrap(answers[other])).encode()
                assert workload.is_right(number, body) == (number == other)
        assert not workload.is_right(0, b"{}")
        assert not workload.is_right(0, b"<html>")


def test_sojourn_parses_the_open_inference_dialect() -> None:
    model, rows = HOSTED["mlp"].load(), random_rows("mlp", 2)
    workload = Workload("mlp", OpenInference(), rows)
    signature = Signature(model.inputs, model.outputs, max_rows=1)
    for row, body in zip(rows["x"], workload.bodies, strict=True):
        np.testing.assert_array_equal(parse_request(body, None, signature).inputs["x"], [row])
