import gzip
from datetime import UTC, datetime, timedelta, timezone

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
        ("second,requests\n0,1\n1,nan\n", "the requests of second 1 must be known"),
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


def test_minutes_are_read_with_their_step():
    trace = read_trace(b"minute,requests\n5,60\n7,120\n", "t")
    assert (trace.step_s, trace.begin_s, trace.end_s, trace.is_absolute) == (60, 300, 480, False)
    assert trace.counts.tolist() == [60, 0, 120]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    begin_s=st.integers(10**9, 2 * 10**9),
    step_s=st.sampled_from([1, 5, 10, 60]),
    counts=st.lists(st.integers(0, 1000), min_size=2, max_size=20),
    offset_minutes=st.integers(-14 * 60, 14 * 60),
    form=st.sampled_from(["unix", "zone", "utc", "naive"]),
)
def test_a_time_is_the_same_in_every_form_and_zone(begin_s, step_s, counts, offset_minutes, form):
    def written(time_s):
        zone = timezone(timedelta(minutes=offset_minutes)) if form == "zone" else UTC
        text = datetime.fromtimestamp(time_s, zone).isoformat()
        return {
            "unix": str(time_s),
            "utc": text.replace("+00:00", "Z"),
            "naive": text.removesuffix("+00:00"),
        }.get(form, text)

    rows = [f"{written(begin_s + i * step_s)},{count}" for i, count in enumerate(counts)]
    trace = read_trace("\n".join(["timestamp,requests", *rows]).encode(), "t")
    assert (trace.begin_s, trace.step_s, trace.is_absolute) == (begin_s, step_s, True)
    assert trace.counts.tolist() == counts


def test_large_seconds_are_unix_time():
    assert read_trace(b"second,requests\n1700000000,1\n", "t").is_absolute
    assert read_trace(b"minute,requests\n28333333,1\n", "t").is_absolute
    assert not read_trace(b"second,requests\n86400,1\n", "t").is_absolute


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ("2026-11-22T10:00:00Z,1\n2026-11-22T10:02:00Z,1", "line 3: .* at most 60 s"),
        ("1700000000,1\n1700000010,1\n1700000025,1", "line 4: .* whole number of steps"),
        ("2026-11-22T10:00:00Z,1\n2026-11-22T09:59:00Z,1", "line 3: timestamps must be ascending"),
        ("2026-10-25T02:30:00,1\n2026-10-25T02:00:00,1", "line 3: timestamps must be ascending"),
        ("2026-02-30T10:00:00Z,1", "line 2: timestamp must be Unix time"),
        ("2026-11-22T10:00:00.5Z,1", "line 2: timestamp must be Unix time"),
        ("noon,1", "line 2: timestamp must be Unix time"),
        ("2026-11-22T10:00:00Z,-1", "line 2: requests must be a whole number"),
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
