import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from policy.errors import InvalidInputError
from simulator.trace import load_trace


def write(folder, text, name="trace.csv"):
    path = folder / name
    content = text.encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


@settings(max_examples=20)
@given(
    rows=st.dictionaries(st.integers(0, 500), st.integers(0, 10**6), min_size=1),
    packed=st.booleans(),
)
def test_a_trace_is_read_back_with_zeros_in_its_gaps(tmp_path_factory, rows, packed):
    text = "second,requests\n" + "".join(f"{s},{n}\n" for s, n in sorted(rows.items()))
    path = write(tmp_path_factory.mktemp("trace"), text, "t.csv.gz" if packed else "t.csv")
    counts = load_trace(path)
    expected = np.zeros(max(rows) - min(rows) + 1)
    expected[[second - min(rows) for second in rows]] = list(rows.values())
    assert_array_equal(counts, expected)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_a_byte_order_mark_is_ignored(tmp_path, name):
    """Spreadsheets put one before the header."""
    path = write(tmp_path, "\ufeffsecond,requests\n7,3\n8,4\n", name)
    assert_array_equal(load_trace(path), [3, 4])


def test_carriage_returns_and_empty_lines_are_ignored(tmp_path):
    assert load_trace(write(tmp_path, "second,requests\r\n7,1\r\n9,2\r\n\r\n")).tolist() == [
        1,
        0,
        2,
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "first line must be second,requests"),
        ("0,1\n", "first line must be second,requests"),
        ("second,requests\n", "no rows"),
        ("second,requests\n0,1\n1;2\n", "line 3: must be two numbers"),
        ("second,requests\n0,1\n1,2,3\n", "line 3: must be two numbers"),
        ("second,requests\n0,many\n", "line 2: must be two numbers"),
        ("second,requests\n0,1\n1,-2\n", "line 3: requests must be a whole number"),
        ("second,requests\n0,1\n1,nan\n", "line 3: requests must be a whole number"),
        ("second,requests\n0,1\n1,inf\n", "line 3: requests must be a whole number"),
        ("second,requests\n0.5,1\n", "line 2: second must be a whole number"),
        ("second,requests\n0,1\n2,1\n\n2,1\n", "line 5: seconds must be ascending"),
        ("second,requests\n0,1\n1e12,1\n", "a year"),
    ],
)
def test_a_bad_trace_is_reported_in_one_line(tmp_path, text, complaint):
    with pytest.raises(InvalidInputError, match=complaint) as caught:
        load_trace(write(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_an_unreadable_file_is_reported(tmp_path):
    with pytest.raises(InvalidInputError, match="No such file"):
        load_trace(tmp_path / "none.csv")
    for name, content in (
        ("plain.csv.gz", b"second,requests\n"),
        ("cut.csv.gz", gzip.compress(b"second,requests\n0,1\n")[:-9]),
        ("binary.csv", b"\xff\xfe\x00"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(InvalidInputError, match=r"incomplete|not text"):
            load_trace(path)
