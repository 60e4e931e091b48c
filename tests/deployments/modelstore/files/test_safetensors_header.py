import json
import os
import re
import struct

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import torch
from hypothesis import given
from hypothesis import strategies as st

from deployments.modelstore.dtypes import typed
from deployments.modelstore.errors import UntrustedFileError
from deployments.modelstore.files.safetensors_header import TORCH_DTYPES, read_entries


def read(content):
    descriptor = os.memfd_create("test")
    try:
        os.write(descriptor, content)
        return read_entries(descriptor)
    finally:
        os.close(descriptor)


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
arrays = st.builds(np.ones, st.lists(st.integers(0, 4), max_size=3), dtypes)


@given(st.dictionaries(st.text(max_size=5), arrays, max_size=5))
def test_it_finds_the_tensors_that_the_library_wrote(tensors):
    file = safetensors.numpy.save(tensors)
    entries = read(file)
    assert {entry.name: entry.shape for entry in entries} == {
        name: array.shape for name, array in tensors.items()
    }
    for entry in entries:
        assert file[entry.begin : entry.end] == tensors[entry.name].tobytes()


@pytest.mark.parametrize(
    "file",
    [
        *(GOOD[:size] for size in (0, 7, 8, 60, len(GOOD) - 1)),
        GOOD + b"x",
        file_of({"a": tensor(0, 4), "b": tensor(2, 6)}, bytes(6)),
        file_of({"a": tensor(1, 4)}, bytes(4)),
        file_of({"a": tensor(0, 4, [5])}, bytes(4)),
        file_of({"a": tensor(0, 4, [1 << 62])}, bytes(4)),
        file_of(b"[" * 100_000),
        b"\x80\x04pickle" * 100,
        # The library takes these.
        file_of({"a": ["F32", [1], [0, 4]]}, bytes(4)),
        file_of({"a": tensor(0, 4, [1], {"F32": None})}, bytes(4)),
        file_of({"a": tensor(0, 3, [2, 3], "F4")}, bytes(3)),
        file_of({"a": tensor(0, 0, [1 << 63, 0])}),
        file_of({"a": tensor(0, 0, [0, 1 << 62, 3])}),
        file_of({"a": tensor(0, 3, [4], "F6_E2M3")}, bytes(3)),
    ],
)
def test_a_malformed_file_is_refused(file):
    with pytest.raises(UntrustedFileError, match="safetensors"):
        read(file)


def library_takes(file):
    try:
        return bool(safetensors.deserialize(file))
    except safetensors.SafetensorError:
        return False


def test_tensors_have_the_dtypes_that_the_library_gives_torch(tmp_path):
    def of_dtype(dtype, size_bytes):
        return file_of({"a": tensor(0, size_bytes, [4], dtype)}, bytes(size_bytes))

    with pytest.raises(safetensors.SafetensorError) as caught:
        safetensors.deserialize(of_dtype("X", 4))
    known = re.findall(r"`(\w+)`", str(caught.value))[1:]
    assert set(TORCH_DTYPES) <= set(known)
    for dtype in known:
        [size] = [size for size in range(1, 33) if library_takes(of_dtype(dtype, size))]
        file = of_dtype(dtype, size)
        path = tmp_path / "model.safetensors"
        path.write_bytes(file)
        try:
            with safetensors.safe_open(path, "pt") as opened:
                expected = opened.get_tensor("a")
        except safetensors.SafetensorError:
            with pytest.raises(UntrustedFileError, match=dtype):
                read(file)
            continue
        [entry] = read(file)
        found = typed(torch.zeros(size, dtype=torch.uint8), entry)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
