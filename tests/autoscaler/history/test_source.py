import gzip
from pathlib import Path

import pytest

from autoscaler.history.source import HistorySource, store_history, unpack
from policy.errors import InvalidInputError

NOON = 1_795_341_600 + 2 * 3600  # 2026-11-22T12:00:00Z
SECONDS = b"second,requests\n0,3\n1,4\n"


def write(folder: Path, content: bytes = SECONDS, name: str = "week.csv") -> str:
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
def test_a_wrong_setting_is_reported_in_one_line(content: object, complaint: str) -> None:
    with pytest.raises(InvalidInputError, match=complaint) as caught:
        HistorySource.parse(content)
    assert "\n" not in str(caught.value)


def test_a_file_without_unix_times_ends_now(tmp_path: Path) -> None:
    source = HistorySource(write(tmp_path))
    trace = source.trace(SECONDS, NOON + 0.7)
    assert (trace.begin_s, trace.end_s, trace.is_absolute) == (NOON - 2, NOON, True)
    dated = f"timestamp,requests\n{NOON},5\n".encode()
    assert source.trace(dated, NOON + 60).begin_s == NOON
    with pytest.raises(InvalidInputError, match="begins in the future"):
        source.trace(dated, NOON - 1)


def test_a_file_is_checked_before_it_is_used(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"history gone\.csv: No such file"):
        HistorySource("gone.csv").check(tmp_path)
    write(tmp_path, b"second,requests\n1,2\n1,3\n")
    with pytest.raises(InvalidInputError, match=r"week\.csv: line 3: seconds must be ascending"):
        HistorySource("week.csv").check(tmp_path)
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(SECONDS)[:-9])
    with pytest.raises(InvalidInputError, match="incomplete, or not gzipped"):
        HistorySource("cut.csv.gz").check(tmp_path)
    HistorySource(prometheus="http://nowhere.invalid", query="x").check(tmp_path)


@pytest.mark.parametrize("name", ["week.csv", "week.csv.gz"])
def test_what_is_packed_is_unpacked(tmp_path: Path, name: str) -> None:
    source = HistorySource(write(tmp_path, name=name))
    packed = source.pack()
    assert unpack(packed.content) == (source, SECONDS)
    assert packed == source.pack()
    assert float(packed.code) == packed.code >= 1
    asked = HistorySource(prometheus="http://p/", query="x")
    assert unpack(asked.pack().content) == (asked, b"")


@pytest.mark.parametrize("content", [b"", b"{}\n", b'{"file": "a.csv"}\nplain', b"[1]\n"])
def test_what_was_not_packed_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidInputError, match="history"):
        unpack(content)


def test_a_history_is_stored_once(tmp_path: Path) -> None:
    source = HistorySource(write(tmp_path))
    stored: list[bytes] = []
    for _ in range(3):
        code = store_history(source, lambda: stored[-1] if stored else None, stored.append)
    assert (len(stored), code) == (1, source.pack().code)
    write(tmp_path, SECONDS + b"2,5\n")
    assert store_history(source, lambda: stored[-1], stored.append) != code
    assert len(stored) == 2


def test_a_file_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autoscaler.history.source._MAX_BYTES", 10)
    with pytest.raises(InvalidInputError, match="at most 0 are allowed"):
        HistorySource(write(tmp_path)).pack()
