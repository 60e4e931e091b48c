import orjson
import pytest

from loadtests.answers import read_cases
from loadtests.cases import RANDOM_CASES, prepare_cases
from loadtests.digits import held_out
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
    assert prepare_cases(DIGITS, path) == len(images)
    cases = read_cases(path)
    (sent,) = orjson.loads(cases[5].body)["inputs"]
    assert sent["shape"] == [1, 8, 8]
    assert sent["data"] == images[5].ravel().tolist()
    label, probabilities = cases[5].outputs
    assert sum(probabilities["data"]) == pytest.approx(1, abs=1e-4)
    assert probabilities["data"][label["data"][0]] == max(probabilities["data"])
    assert sum(case.label_true for case in cases) / len(cases) >= 0.97


def test_the_answer_to_one_digit_is_wrong_for_another(tmp_path):
    path = tmp_path / "cases.jsonl"
    prepare_cases(DIGITS, path)
    first, second = read_cases(path)[:2]
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
