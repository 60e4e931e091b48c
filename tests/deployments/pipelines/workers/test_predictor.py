"""How the user's code is constructed and called, and its results taken apart."""

import numpy as np
import pytest
import safetensors.torch

from deployments.errors import BadRequestError, ModelError, StartError
from deployments.models.base import TensorSpec
from deployments.modelstore.client import list_models
from deployments.pipelines.core.items import RETRY, BatchFailure, ItemFailure
from deployments.pipelines.core.steps import Stage
from deployments.pipelines.workers.predictor import make_predictor
from policy.errors import InvalidInputError
from tests.support.models.model_stores import manager_thread, publish, settings_for
from tests.support.models.stored_models import Scale as StoredScale
from tests.support.pipelines.stages import (
    Doubler,
    FailsOnNegative,
    NamesRows,
    Scale,
    shift,
)


def predictor(code, lists=False, **options):
    return make_predictor(Stage(code, "stage", options, batch_size=9 if lists else None))


@pytest.mark.parametrize(
    "code", [Scale, Scale(), "tests.support.pipelines.stages:Scale", lambda x: 2 * x]
)
def test_a_class_an_object_a_path_or_a_function(code):
    assert predictor(code)([4]) == [8]
    assert predictor(Scale, factor=5)([4]) == [20]


def test_items_that_fail_alone():
    good, bad = predictor(shift)([1, None])
    assert (good, type(bad.error)) == (4, TypeError)
    good, bad = predictor(lambda items: [2, BadRequestError()], lists=True)([2, 3])
    assert (good, type(bad), type(bad.error)) == (2, ItemFailure, BadRequestError)
    first, named, third = predictor(NamesRows, lists=True)([1, -2, 3])
    assert (first, named.error.status, third) == (RETRY, 400, RETRY)


class ReadsItself:
    def __init__(self, path):
        self.factor = safetensors.torch.load_file(path)["factor"]

    def predict(self, x):
        return float(self.factor * x)


def test_stages_take_weights_of_the_store_and_share_what_they_read(tmp_path, monkeypatch):
    scaled = {"model.safetensors": {"factor": np.full(1, 3.0, np.float32)}}
    folder = publish(tmp_path / "remote", "scale", scaled)
    with manager_thread(settings_for(tmp_path)) as store:
        monkeypatch.setenv("SOJOURN_STORE", str(store))
        for code in (StoredScale, "tests.support.models.stored_models:Scale"):
            stage = Stage(code, batch_size=2, weights="store://scale")
            results = make_predictor(stage)([{"x": [2.0]}, {"x": [4.0]}])
            assert results == [{"y": np.float32([6])}, {"y": np.float32([12])}]
        file = folder / "model.safetensors"
        shared = make_predictor(Stage(ReadsItself, options={"path": file}, share=True))
        assert shared([4]) == [12]
        assert any(row["name"].startswith("file/") for row in list_models(store))
        with pytest.raises(InvalidInputError, match="leave the setting out"):
            make_predictor(Stage(Scale, share=True))


@pytest.mark.parametrize(
    ("code", "useless", "complaint"),
    [
        (Scale, {"weights": "file"}, r"weights: only a sojourn\.Model"),
        (shift, {"device": "cuda"}, r"device: only a sojourn\.Model"),
        (Scale(), {"options": {"factor": 3}}, "options: only a class"),
        (shift, {"options": {"factor": 3}}, "options: only a class"),
    ],
)
def test_a_setting_that_does_nothing_is_an_error(code, useless, complaint):
    with pytest.raises(InvalidInputError, match=complaint):
        make_predictor(Stage(code, "stage", **useless))


class NoDevice:
    def predict(self, items):
        raise ModelError("no GPU")


class WrongShape(Doubler):
    def forward(self, batch):
        return {"y": np.zeros((1, 2))}


@pytest.mark.parametrize(
    ("code", "whole", "complaint"),
    [
        (FailsOnNegative, False, "negative"),
        (lambda items: items[:1], False, "predict returned 1 results for 2 items"),
        (lambda items: "ab", False, "must return a list of 2 results"),
        (lambda items: None, False, "must return a list of 2 results"),
        (NoDevice, True, "no GPU"),
        (Doubler, False, "not subscriptable"),
        (WrongShape, True, "output 'y': (2, 3) expected, got (1, 2)"),
    ],
)
def test_batches_that_fail(code, whole, complaint):
    items = [{"x": np.ones(3)}] * 2 if code is WrongShape else [1, -1]
    failure = predictor(code, lists=True)(items)
    assert type(failure) is BatchFailure
    assert failure.whole == whole
    assert complaint in str(failure.error)


@pytest.mark.parametrize("code", [Doubler, "tests.support.pipelines.stages:Doubler"])
def test_a_model(code):
    run = predictor(code)
    (first,) = run([{"x": np.ones(3)}])
    run([{"x": np.zeros(3)}])  # its output buffer is used again
    np.testing.assert_array_equal(first["y"], [2, 2, 2])


def test_an_output_that_does_not_fit_fails_its_row_alone():
    class Counts(Doubler):
        outputs = (TensorSpec("y", "INT8", ()),)

        def forward(self, batch):
            return {"y": batch["x"].sum(axis=1)}

    good, bad = predictor(Counts, lists=True)([{"x": np.ones(3)}, {"x": np.full(3, 100)}])
    assert good == {"y": 3}
    assert str(bad.error) == "output 'y': INT8 expected, got 300.0"


@pytest.mark.parametrize(
    ("code", "options", "error", "complaint"),
    [
        ("nowhere", {}, InvalidInputError, "must be package.module:name"),
        ("tests.support.pipelines.stages:Nothing", {}, InvalidInputError, "Nothing"),
        (7, {}, InvalidInputError, "no method predict"),
        (Scale, {"wrong": 1}, StartError, "wrong"),
    ],
)
def test_what_cannot_be_constructed(code, options, error, complaint):
    with pytest.raises(error, match=complaint):
        predictor(code, **options)
