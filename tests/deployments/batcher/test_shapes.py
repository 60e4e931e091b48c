import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.batcher.shapes import BatchShapes
from deployments.errors import ModelError
from deployments.models.base import TensorSpec
from policy.batcher.requests import Request, Slice

TOKENS = TensorSpec("tokens", "INT64", (-1,), pad=-7, lengths="lengths")
TAGS = TensorSpec("tags", "INT64", (2, -1), length_of="tokens")


def slices_of(*arrays):
    return [Slice(Request(0.0, len(one), {"tokens": one}), 0, len(one)) for one in arrays]


def test_requests_share_a_batch_if_their_rows_have_one_shape():
    shapes = BatchShapes((TensorSpec("image", "FP32", (3, -1, -1)), TensorSpec("k", "INT8")), ())

    def kind(rows, *shape):
        return shapes.class_of({"image": np.zeros((rows, 3, *shape)), "k": np.zeros(rows)})

    assert kind(1, 4, 6) == kind(5, 4, 6)
    assert len({kind(1, 4, 6), kind(1, 6, 4), kind(1, 24, 1)}) == 3
    fixed = BatchShapes((TensorSpec("x", "FP32", (2,)), TOKENS), ())
    assert fixed.class_of({"x": np.zeros((1, 2)), "tokens": np.zeros((1, 9))}) is None


@given(
    st.lists(
        st.lists(st.lists(st.integers(-5, 5), min_size=1, max_size=6), min_size=1, max_size=3),
        min_size=1,
        max_size=5,
    )
)
def test_padding_keeps_every_row_and_cutting_undoes_it(requests):
    # All rows of a request have the length of its first.
    given = [np.array([(row * 6)[: len(rows[0])] for row in rows]) for rows in requests]
    shapes = BatchShapes((TOKENS,), (TAGS,))
    parts = slices_of(*given)
    batch = shapes.join(parts)
    longest = max(one.shape[1] for one in given)
    rows = [row.tolist() for one in given for row in one]
    assert batch["lengths"].tolist() == list(map(len, rows))
    assert batch["tokens"].tolist() == [row + [-7] * (longest - len(row)) for row in rows]
    assert (batch["tokens"].dtype, batch["lengths"].dtype) == (np.int64, np.int64)
    tags = np.stack([batch["tokens"], 2 * batch["tokens"]], axis=1)
    ends = np.cumsum([len(one) for one in given]).tolist()
    outputs = [{"tags": tags[end - len(one) : end]} for one, end in zip(given, ends, strict=True)]
    shapes.cut(outputs, parts)
    for output, one in zip(outputs, given, strict=True):
        assert output["tags"].tolist() == np.stack([one, 2 * one], axis=1).tolist()


def test_a_part_of_a_request_is_padded_with_its_other_inputs_unchanged():
    text = TensorSpec("words", "BYTES", (-1, 2), pad=b"")
    shapes = BatchShapes((text, TensorSpec("k", "INT8")), ())
    long = {"words": np.full((3, 2, 2), b"a", object), "k": np.array([1, 2, 3], np.int8)}
    short = {"words": np.full((1, 1, 2), b"b", object), "k": np.array([4], np.int8)}
    batch = shapes.join([Slice(Request(0.0, 3, long), 1, 3), Slice(Request(0.0, 1, short), 0, 1)])
    assert batch["k"].tolist() == [2, 3, 4]
    assert batch["words"].tolist() == [[[b"a"] * 2] * 2] * 2 + [[[b"b"] * 2, [b""] * 2]]
    assert set(batch) == {"words", "k"}
    # The model may write into a batch.
    alone = shapes.join([Slice(Request(0.0, 3, long), 0, 3)])
    assert not any(np.shares_memory(alone[name], long[name]) for name in long)


def test_an_output_of_another_length_than_its_input_is_an_error_of_the_model():
    parts = slices_of(np.zeros((1, 3)), np.zeros((1, 5)))
    message = "output 'tags': its length must be that of 'tokens', 5, not 4"
    with pytest.raises(ModelError, match=message):
        BatchShapes((TOKENS,), (TAGS,)).cut([{"tags": np.zeros((1, 2, 4))}] * 2, parts)
