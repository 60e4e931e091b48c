"""Requests made for any model."""

import base64

import numpy as np
import pytest
from PIL import Image

from loadtests.answers import parse_case
from loadtests.generated_cases import image_cases, random_cases
from policy.errors import InvalidInputError


def spec(datatype, *shape, name="x"):
    return {"name": name, "datatype": datatype, "shape": list(shape)}


@pytest.mark.parametrize(
    ("datatype", "low", "high", "kind"),
    [
        ("FP16", 0, 1, float),
        ("FP32", 0, 1, float),
        ("FP64", 0, 1, float),
        ("INT8", 0, 99, int),
        ("UINT8", 0, 255, int),
        ("INT64", 0, 99, int),
        ("BOOL", False, True, bool),
    ],
)
def test_numbers_are_in_the_range_of_their_type(datatype, low, high, kind):
    (case,) = random_cases([spec(datatype, -1, 30, 8)], 1)
    (tensor,) = case["inputs"]
    assert tensor["shape"] == [1, 30, 8]
    assert len(tensor["data"]) == 240
    assert {type(value) for value in tensor["data"]} == {kind}
    assert low == min(low, *tensor["data"])
    assert high == max(high, *tensor["data"])
    np.testing.assert_array_equal(
        np.array(tensor["data"], np.float16 if datatype == "FP16" else None), tensor["data"]
    )


@pytest.mark.parametrize(("declared", "longest"), [({}, 16), ({"max_dim": 3}, 3)])
def test_dimensions_of_any_length_differ_from_request_to_request(declared, longest):
    inputs = [{**spec("FP32", -1, 2, -1), "parameters": declared}]
    shapes = [case["inputs"][0]["shape"] for case in random_cases(inputs, 200)]
    assert {tuple(shape) for shape in shapes} == {(1, 2, n) for n in range(1, longest + 1)}


def test_bytes_are_words_and_all_requests_differ():
    cases = [*random_cases([spec("BYTES", -1), spec("FP32", -1, name="y")], 50)]
    assert [tensor["name"] for tensor in cases[0]["inputs"]] == ["x", "y"]
    assert all(case["inputs"][0]["data"][0].replace(" ", "").isalpha() for case in cases)
    assert len({parse_case(case).body for case in cases}) == 50
    again = [*random_cases([spec("BYTES", -1), spec("FP32", -1, name="y")], 50)]
    assert cases == again


@pytest.fixture
def folder(tmp_path):
    red = np.zeros((6, 4, 3), np.uint8)
    red[..., 0] = 255
    Image.fromarray(red).save(tmp_path / "b.png")
    Image.fromarray(np.full((3, 3), 51, np.uint8)).save(tmp_path / "a.png")
    (tmp_path / "notes.txt").write_text("not an image")
    return tmp_path


def test_pixels_are_resized_to_the_shape(folder):
    dark, red = image_cases([spec("FP32", -1, 3, 2, 2)], folder)
    assert dark["inputs"][0]["data"] == [0.2] * 12
    assert red["inputs"][0]["data"] == [1.0] * 4 + [0.0] * 8
    assert red["inputs"][0]["shape"] == [1, 3, 2, 2]
    _, last = image_cases([spec("UINT8", -1, 2, 1, 3)], folder)
    assert last["inputs"][0]["data"] == [255, 0, 0] * 2
    gray, _ = image_cases([spec("UINT8", -1, 5, 5)], folder)
    assert gray["inputs"][0]["data"] == [51] * 25


def test_bytes_take_the_file_and_are_sent_raw(folder):
    _, red = image_cases([spec("BYTES", -1)], folder)
    content = (folder / "b.png").read_bytes()
    assert base64.b64decode(red["inputs"][0]["base64"][0]) == content
    case = parse_case(red)
    head_length = int(case.headers["Inference-Header-Content-Length"])
    assert case.body[head_length:] == len(content).to_bytes(4, "little") + content
    assert b'"binary_data_size":%d' % (len(content) + 4) in case.body[:head_length]
    assert b"base64" not in case.body[:head_length]


@pytest.mark.parametrize(
    ("inputs", "complaint"),
    [
        ([spec("FP32", -1), spec("FP32", -1)], "must have one input, not 2"),
        ([spec("FP32", -1, 7)], r"of shape \[7\] does not take an image"),
        ([spec("BYTES", -1, 2)], "must be one value per row"),
    ],
)
def test_inputs_that_take_no_image(folder, inputs, complaint):
    with pytest.raises(InvalidInputError, match=complaint):
        next(image_cases(inputs, folder))


def test_folders_without_images(tmp_path):
    inputs = [spec("UINT8", -1, 2, 2)]
    with pytest.raises(InvalidInputError, match=r"has no files \.png"):
        next(image_cases(inputs, tmp_path))
    with pytest.raises(InvalidInputError, match="No such file"):
        next(image_cases(inputs, tmp_path / "none"))
    (tmp_path / "a.png").write_text("text")
    with pytest.raises(InvalidInputError, match=r"a\.png is not an image"):
        next(image_cases(inputs, tmp_path))
