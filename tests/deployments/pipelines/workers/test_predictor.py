"""How the user's code is constructed and called, and its results taken apart."""

import numpy as np
import pytest

from deployments.errors import BadRequestError, ModelError, StartError
from deployments.models.base import TensorSpec
from deployments.pipelines.core.items import RETRY, BatchFailure, ItemFailure
from deployments.pipelines.workers.predictor import Recipe, make_predictor
from policy.errors import InvalidInputError
from tests.support.pipelines.stages import (
    Doubler,
    DropsNegative,
    FailsOnNegative,
    NamesRows,
    ReturnsErrors,
    Scale,
    shift,
)


def predictor(code, lists=False, **options):
    return make_predictor(Recipe(code, options, "cpu", lists))


@pytest.mark.parametrize(
    "code", [Scale, Scale(), "tests.support.pipelines.stages:Scale", lambda x: 2 * x]
)
def test_a_class_an_object_a_path_or_a_function(code):
    assert predictor(code)([4]) == [8]


def test_options():
    assert predictor(Scale, factor=5)([4]) == [20]


def test_a_single_item_that_fails_fails_alone():
    good, bad = predictor(shift)([1, None])
    assert good == 4
    assert type(bad.error) is TypeError


def test_a_returned_exception_fails_its_item_alone():
    good, bad = predictor(ReturnsErrors, lists=True)([2, 3])
    assert good == 2
    assert type(bad) is ItemFailure
    assert type(bad.error) is BadRequestError


def test_named_rows_fail_and_the_others_run_again():
    first, second, third = predictor(NamesRows, lists=True)([1, -2, 3])
    assert (first, third) == (RETRY, RETRY)
    assert second.error.status == 400


def test_too_few_results_fail_the_batch():
    failure = predictor(DropsNegative, lists=True)([1, -2, 3])
    assert type(failure) is BatchFailure
    assert str(failure.error) == "predict returned 2 results for 3 items"


@pytest.mark.parametrize("results", ["ab", {0: 1, 1: 2}, None, 2.5])
def test_what_is_no_list_of_results(results):
    failure = predictor(lambda items: results, lists=True)([1, 2])
    assert "must return a list of 2 results" in str(failure.error)


def test_an_unknown_culprit_and_a_failure_of_the_whole_batch():
    def give_up(items):
        raise ModelError("no GPU")

    assert not predictor(FailsOnNegative, lists=True)([1, -1]).whole
    assert predictor(give_up, lists=True)([1, -1]).whole


@pytest.mark.parametrize("code", [Doubler, "tests.support.pipelines.stages:Doubler"])
@pytest.mark.parametrize("lists", [False, True])
def test_a_model(code, lists):
    run = predictor(code, lists)
    (first,) = run([{"x": np.ones(3)}])
    run([{"x": np.zeros(3)}])
    np.testing.assert_array_equal(first["y"], [2, 2, 2])


def test_a_models_wrong_inputs_fail():
    failure = predictor(Doubler, lists=True)([{"x": np.ones(3)}, {"wrong": 1}])
    assert type(failure) is BatchFailure


def test_a_models_wrong_output_is_named():
    class Wrong(Doubler):
        def forward(self, batch):
            return {"y": np.zeros((1, 2))}

    failure = predictor(Wrong, lists=True)([{"x": np.ones(3)}])
    assert "output 'y': (1, 3) expected, got (1, 2)" in str(failure.error)


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
        ("nowhere:Stage", {}, InvalidInputError, "No module named 'nowhere'"),
        ("tests.support.pipelines.stages:Nothing", {}, InvalidInputError, "Nothing"),
        (7, {}, InvalidInputError, "no method predict"),
        (Scale, {"wrong": 1}, StartError, "wrong"),
    ],
)
def test_what_cannot_be_constructed(code, options, error, complaint):
    with pytest.raises(error, match=complaint):
        predictor(code, **options)
