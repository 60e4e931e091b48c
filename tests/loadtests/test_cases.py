import numpy as np
import orjson
import pytest

from loadtests.answers import read_cases
from loadtests.cases import RANDOM_CASES, prepare_cases, random_cases
from loadtests.digits import held_out, train
from policy.errors import InvalidInputError


def tensor(name, datatype, *shape):
    return {"name": name, "datatype": datatype, "shape": list(shape)}


DIGITS = {
    "name": "digits",
    "inputs": [tensor("image", "FP32", -1, 8, 8)],
    "outputs": [tensor("label", "INT64", -1), tensor("probabilities", "FP32", -1, 10)],
}
EMULATED = {
    "name": "p4",
    "inputs": [tensor("input", "FP32", -1, 1)],
    "outputs": [tensor("output", "FP32", -1, 1)],
}


def test_digits_requests_are_the_held_out_images_with_the_models_answers(tmp_path):
    path = tmp_path / "cases.jsonl"
    images, _ = held_out()
    assert (len(images), len(train()[0])) == (449, 1348)
    assert prepare_cases(DIGITS, path) == len(images)
    cases = read_cases(path)
    (sent,) = orjson.loads(cases[5].body)["inputs"]
    assert sent["shape"] == [1, 8, 8]
    assert sent["data"] == images[5].ravel().tolist()
    label, probabilities = cases[5].outputs
    assert sum(probabilities["data"]) == pytest.approx(1, abs=1e-4)
    assert probabilities["data"][label["data"][0]] == max(probabilities["data"])
    first, second = cases[:2]
    assert first.fault(orjson.dumps({"outputs": first.outputs})) is None
    assert first.fault(orjson.dumps({"outputs": second.outputs})) is not None


def test_other_models_get_the_users_own_cases_or_random_ones(tmp_path):
    other = {**EMULATED, "inputs": [tensor("text", "BYTES", -1)]}
    path, own = tmp_path / "cases.jsonl", tmp_path / "own.jsonl"
    assert prepare_cases(other, path) == RANDOM_CASES
    assert len({case.body for case in read_cases(path)}) == RANDOM_CASES
    assert not any(case.outputs for case in read_cases(path))
    with pytest.raises(InvalidInputError, match="lists no inputs"):
        prepare_cases({"inputs": [{}], "outputs": []}, path)
    own.write_text('{"inputs": [{"name": "text"}]}\n')
    assert prepare_cases(other, path, own) == 1
    assert len(read_cases(path)) == 1


@pytest.mark.parametrize(
    ("datatype", "low", "high", "kind"),
    [
        ("FP16", 0, 1, float),
        ("FP64", 0, 1, float),
        ("UINT8", 0, 255, int),
        ("INT64", 0, 99, int),
        ("BOOL", False, True, bool),
    ],
)
def test_numbers_are_in_the_range_of_their_type(datatype, low, high, kind):
    (case,) = random_cases([tensor("x", datatype, -1, 30, 8)], 1)
    (made,) = case["inputs"]
    assert made["shape"] == [1, 30, 8]
    assert len(made["data"]) == 240
    assert {type(value) for value in made["data"]} == {kind}
    assert low == min(low, *made["data"])
    assert high == max(high, *made["data"])
    np.testing.assert_array_equal(
        np.array(made["data"], np.float16 if datatype == "FP16" else None), made["data"]
    )


@pytest.mark.parametrize(("declared", "longest"), [({}, 16), ({"max_dim": 3}, 3)])
def test_dimensions_of_any_length_differ_from_request_to_request(declared, longest):
    inputs = [{**tensor("x", "FP32", -1, 2, -1), "parameters": declared}]
    shapes = [case["inputs"][0]["shape"] for case in random_cases(inputs, 200)]
    assert {tuple(shape) for shape in shapes} == {(1, 2, n) for n in range(1, longest + 1)}
