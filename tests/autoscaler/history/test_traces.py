import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from autoscaler.history.traces import Trace, counts_by_second, load_trace, read_trace
from policy.errors import InvalidInputError


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


def test_a_byte_order_mark_carriage_returns_and_empty_lines_are_ignored(tmp_path):
    path = write(tmp_path, "\ufeffsecond,requests\r\n7,1\r\n9,2\r\n\r\n")
    assert load_trace(path).tolist() == [1, 0, 2]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "first line must be second,requests"),
        ("second,requests\n", "no rows"),
        ("second,requests\n0,1\n1;2\n", "line 3: must be two numbers"),
        ("second,requests\n0,1\n1,-2\n", "line 3: requests must be a whole number"),
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


@pytest.mark.parametrize("step_s", [1, 5, 10, 60])
def test_the_step_of_timestamps_is_the_least_time_between_two_rows(step_s):
    rows = f"1700000000,3\n{1700000000 + step_s},4\n{1700000000 + 4 * step_s},5\n"
    trace = read_trace(f"timestamp,requests\n{rows}".encode(), "t")
    assert (trace.begin_s, trace.step_s, trace.is_absolute) == (1700000000, step_s, True)
    assert trace.counts.tolist() == [3, 4, 0, 0, 5]


def test_large_seconds_are_unix_time():
    assert read_trace(b"second,requests\n1700000000,1\n", "t").is_absolute
    assert read_trace(b"minute,requests\n28333333,1\n", "t").is_absolute
    assert not read_trace(b"second,requests\n86400,1\n", "t").is_absolute


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ("1700000000,1\n1700000120,1", "line 3: .* at most 60 s"),
        ("1700000000,1\n1700000010,1\n1700000025,1", "line 4: .* whole number of steps"),
        ("1700000000,1\n1600000000,1", "line 3: timestamps must be ascending"),
    ],
)
def test_a_wrong_timestamp_is_reported_with_its_line(rows, complaint):
    with pytest.raises(InvalidInputError, match=complaint):
        read_trace(f"timestamp,requests\n{rows}\n".encode(), "t")


def test_unknown_requests_are_kept_apart_from_none():
    trace = read_trace(b"second,requests\n0,4\n1,nan\n3,5\n", "t")
    assert_array_equal(trace.counts, [4, np.nan, 0, 5])
    with pytest.raises(InvalidInputError, match="second 1 must be known"):
        counts_by_second(trace, "t")
    with pytest.raises(InvalidInputError, match="a row per second here, not one every 60 s"):
        counts_by_second(read_trace(b"minute,requests\n0,4\n", "t"), "t")


def test_a_trace_is_moved_and_cut_by_whole_steps():
    trace = Trace(np.arange(5.0), step_s=60, begin_s=0, is_absolute=False)
    moved = trace.ending_at(1_000_000)
    assert (moved.begin_s, moved.end_s, moved.is_absolute) == (999_700, 1_000_000, True)
    assert trace.until(179).counts.tolist() == [0, 1]
    assert trace.until(-5).counts.size == 0
    assert (trace.last(130).begin_s, trace.last(130).counts.tolist()) == (180, [3, 4])
    assert trace.last(10**6).counts.size == 5
