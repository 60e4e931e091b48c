import gzip

import pytest

from autoscaler.history.source import HistorySource
from policy.errors import InvalidInputError

NOON = 1_795_341_600 + 2 * 3600  # 2026-11-22T12:00:00Z
SECONDS = b"second,requests\n0,3\n1,4\n"


def write(folder, content=SECONDS, name="week.csv"):
    path = folder / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return str(path)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (7, "must be the name of a file, or have `prometheus` and `query`"),
        ({}, "must have either `file` or `prometheus`"),
        ({"fil": "a.csv"}, "fil must be text, and one of file, prometheus, query"),
        ({"file": "a.csv", "query": "x"}, "belong together"),
        ({"prometheus": "p:9090", "query": "x"}, "must be a URL of http or https, not 'p:9090'"),
    ],
)
def test_a_wrong_setting_is_reported_in_one_line(content, complaint):
    with pytest.raises(InvalidInputError, match=complaint) as caught:
        HistorySource.parse(content)
    assert "\n" not in str(caught.value)


def test_a_file_without_unix_times_ends_now(tmp_path):
    trace = HistorySource(write(tmp_path)).trace(NOON + 0.7)
    assert (trace.begin_s, trace.end_s, trace.is_absolute) == (NOON - 2, NOON, True)
    dated = HistorySource(write(tmp_path, f"timestamp,requests\n{NOON},5\n".encode()))
    assert dated.trace(NOON + 60).begin_s == NOON
    with pytest.raises(InvalidInputError, match="begins in the future"):
        dated.trace(NOON - 1)


def test_a_file_is_checked_before_it_is_used(tmp_path):
    write(tmp_path, b"second,requests\n1,2\n1,3\n")
    with pytest.raises(InvalidInputError, match=r"week\.csv: line 3: seconds must be ascending"):
        HistorySource("week.csv").check(tmp_path)
    HistorySource(prometheus="http://nowhere.invalid", query="x").check(tmp_path)


def test_a_code_names_the_content_and_is_exact_as_a_float(tmp_path):
    code = HistorySource(write(tmp_path)).code()
    assert HistorySource(write(tmp_path)).code() == float(code) >= 1
    assert HistorySource(write(tmp_path, SECONDS + b"2,5\n")).code() != code
    assert HistorySource(prometheus="http://p/", query="x").code() != code
