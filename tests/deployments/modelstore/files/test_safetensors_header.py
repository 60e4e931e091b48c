import json
import re
import struct

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.modelstore.dtypes import NUMPY_DTYPES, TORCH_ONLY, stored_shape
from deployments.modelstore.errors import UntrustedFileError
from deployments.modelstore.files.safetensors_header import (
    ITEM_BITS,
    MAX_HEADER_BYTES,
    read_header,
)


def file_of(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(begin, end, shape=None, dtype="U8"):
    return {
        "dtype": dtype,
        "shape": [end - begin] if shape is None else shape,
        "data_offsets": [begin, end],
    }


GOOD = file_of(
    {"a": tensor(0, 4), "b": tensor(4, 12, [2], "F32"), "__metadata__": {"k": "v"}}, bytes(12)
)

dtypes = st.sampled_from([np.float32, np.float16, np.int64, np.uint8, np.bool_])
arrays = st.builds(np.zeros, st.lists(st.integers(0, 4), max_size=3), dtypes)


@settings(max_examples=30)
@given(st.dictionaries(st.text(max_size=5), arrays, max_size=5))
def test_it_finds_the_tensors_that_the_library_wrote(tensors):
    file = safetensors.numpy.save(tensors)
    entries = read_header(file, len(file))
    assert {entry.name: entry.shape for entry in entries} == {
        name: array.shape for name, array in tensors.items()
    }
    assert all(entry.end - entry.begin == tensors[entry.name].nbytes for entry in entries)


@given(st.data())
def test_it_accepts_no_file_that_the_library_refuses(data):
    position = data.draw(st.integers(0, len(GOOD) - 13))
    replacement = data.draw(st.binary(min_size=1, max_size=3))
    file = GOOD[:position] + replacement + GOOD[position + len(replacement) :]
    try:
        read_header(file, len(file))
    except UntrustedFileError:
        return
    safetensors.deserialize(file)


def test_a_truncated_file_is_refused():
    for size in range(len(GOOD)):
        for file in (GOOD, GOOD[:size]):
            with pytest.raises(UntrustedFileError):
                read_header(file, size)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (GOOD + b"x", "the tensors end"),
        (file_of({"a": tensor(0, 4), "b": tensor(2, 6)}, bytes(6)), "overlap"),
        (file_of({"a": tensor(1, 4)}, bytes(4)), "gaps"),
        (file_of({"a": tensor(0, 4, [5])}, bytes(4)), "do not match"),
        (file_of({"a": tensor(0, 4, [-4])}, bytes(4)), "shape"),
        (file_of({"a": tensor(0, 1, [True])}, bytes(1)), "shape"),
        (file_of({"a": tensor(0, 4, [1 << 62])}, bytes(4)), "shape"),
        (file_of({"a": tensor(0, 4, dtype="PICKLE")}, bytes(4)), "dtype"),
        (file_of({"a": tensor(0, 4, dtype=["U8"])}, bytes(4)), "dtype"),
        (file_of({"a": tensor(0, 4) | {"code": "x"}}, bytes(4)), "alone"),
        (file_of(b"[]"), "not an object"),
        (file_of(b"\xff\xff"), "not JSON"),
        (file_of(b"[" * 100_000), "not JSON"),
        (file_of({"__metadata__": {"a": 1}}), "metadata"),
        (struct.pack("<Q", MAX_HEADER_BYTES + 1) + bytes(20), "limit"),
        (b"", "no header"),
    ],
)
def test_a_malformed_file_is_refused(file, message):
    with pytest.raises(UntrustedFileError, match=message):
        read_header(file, len(file))


def library_takes(file):
    try:
        return bool(safetensors.deserialize(file))
    except safetensors.SafetensorError:
        return False


def test_it_takes_the_dtypes_that_the_library_gives_torch_and_no_other(tmp_path):
    def of_dtype(dtype, size_bytes):
        return file_of({"a": tensor(0, size_bytes, [4], dtype)}, bytes(size_bytes))

    with pytest.raises(safetensors.SafetensorError) as caught:
        safetensors.deserialize(of_dtype("X", 4))
    known = re.findall(r"`(\w+)`", str(caught.value))[1:]
    assert set(ITEM_BITS) <= set(known)
    for dtype in known:
        [size] = [size for size in range(1, 33) if library_takes(of_dtype(dtype, size))]
        file = of_dtype(dtype, size)
        path = tmp_path / "model.safetensors"
        path.write_bytes(file)
        try:
            with safetensors.safe_open(path, "pt") as opened:
                expected = opened.get_tensor("a")
        except safetensors.SafetensorError:
            assert dtype not in ITEM_BITS
            continue
        [entry] = read_header(file, len(file))
        assert (entry.dtype, entry.end - entry.begin) == (dtype, size)
        found = torch.from_numpy(np.zeros(stored_shape(dtype, entry.shape), NUMPY_DTYPES[dtype]))
        found = found.view(TORCH_ONLY[dtype]) if dtype in TORCH_ONLY else found
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
