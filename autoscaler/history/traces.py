"""Read traces: the number of requests in each second or minute.

A trace is a CSV file, plain or gzipped, with one of three headers and a row per step, ascending:

- ``second,requests``: a row per second;
- ``minute,requests``: a row per minute;
- ``timestamp,requests``: when a step begins, as Unix time in seconds. The step is the least time
  between two rows.

Seconds and minutes count from any beginning; if they are too many for that, they are Unix time. A
step without a row had no requests; a row with ``nan`` says that they are not known.
"""

import gzip
import io
import math
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from policy.errors import InvalidInputError, file_errors

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

HEADER = "second,requests"
#: The header of each kind of trace, and its step in s; None: as the rows tell.
HEADERS: dict[str, int | None] = {
    HEADER: 1,
    "minute,requests": 60,
    "timestamp,requests": None,
}
#: A longer trace has a mistake in its times.
MAX_TRACE_S = 366 * 86_400
#: The longest step: the SLA is judged by the minute.
MAX_STEP_S = 60
#: Later times are Unix times (from September 2001 on).
_UNIX_TIME_FROM_S = 10**9


@dataclass(frozen=True, eq=False)
class Trace:
    """Requests in each of some equally long steps; NaN where they are not known.

    `begin_s` is when the first step begins, Unix time if `is_absolute`.
    """

    counts: FloatArray
    step_s: int
    begin_s: int
    is_absolute: bool

    @property
    def end_s(self) -> int:
        return self.begin_s + self.step_s * self.counts.size

    @property
    def seconds(self) -> int:
        return self.step_s * self.counts.size

    def ending_at(self, end_s: int) -> "Trace":
        """Return the same requests at another time, Unix time if this one's was not."""
        return replace(self, begin_s=end_s - self.seconds, is_absolute=True)

    def until(self, end_s: float) -> "Trace":
        """Return the steps that end by a time."""
        kept = min(max(0, math.floor((end_s - self.begin_s) / self.step_s)), self.counts.size)
        return replace(self, counts=self.counts[:kept])

    def last(self, seconds: int) -> "Trace":
        """Return the steps of the last seconds."""
        dropped = max(0, self.counts.size - seconds // self.step_s)
        begin_s = self.begin_s + dropped * self.step_s
        return replace(self, counts=self.counts[dropped:], begin_s=begin_s)


def load_trace(path: str | Path) -> IntArray:
    """Read a trace with a row per second.

    Parameters
    ----------
    path : str or Path
        File to read, gzipped if its name ends in ``.gz``.

    Returns
    -------
    ndarray of int, shape (seconds,)
        Requests in each second, from the first to the last in the file.

    Raises
    ------
    InvalidInputError
        The file cannot be read, is not a trace, or does not have a row per second.
    """
    return counts_by_second(read_trace_file(path), f"trace {path}")


def read_trace_file(path: str | Path, name: str | None = None) -> Trace:
    """Read a trace of any kind, gzipped if its file's name ends in ``.gz``; errors have `name`."""
    name = name or f"trace {path}"
    content = read_file(path, name)
    if str(path).endswith(".gz"):
        try:
            content = gzip.decompress(content)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise InvalidInputError(f"{name}: incomplete, or not gzipped") from error
    return read_trace(content, name)


def counts_by_second(trace: Trace, name: str) -> IntArray:
    """Return the requests in each second of a trace, if it knows them all."""
    if trace.step_s > 1:
        raise InvalidInputError(
            f"{name}: must have a row per second here, not one every {trace.step_s} s"
        )
    if np.isnan(trace.counts).any():
        second = trace.begin_s + int(np.argmax(np.isnan(trace.counts)))
        raise InvalidInputError(f"{name}: the requests of second {second} must be known here")
    return trace.counts.astype(np.int64)


def read_file(path: str | Path, name: str) -> bytes:
    with file_errors(name):
        return Path(path).read_bytes()


def read_trace(content: bytes, name: str) -> Trace:
    """Parse the content of a trace; one line of an `InvalidInputError` says where it is wrong."""
    try:
        return _parse(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{name}: not text") from error
    except InvalidInputError as error:
        raise InvalidInputError(f"{name}: {error}") from error


def _parse(text: str) -> Trace:
    header, _, body = text.partition("\n")
    header = header.strip()
    if header not in HEADERS:
        allowed = " or ".join(HEADERS)
        raise InvalidInputError(f"the first line must be {allowed}, not {header[:40]!r}")
    unit = header.partition(",")[0]
    table = _table(body)
    times, requests = table.T
    for values, name, may_be_nan in ((times, unit, False), (requests, "requests", True)):
        allowed = (values >= 0) & (values < 2**53) & (values == np.floor(values))
        wrong = ~(allowed | np.isnan(values)) if may_be_nan else ~allowed
        if wrong.any():
            number, line = _rows(body)[int(np.argmax(wrong))]
            raise InvalidInputError(
                f"line {number}: {name} must be a whole number of at least 0, not {line!r}"
            )
    gaps = np.diff(times)
    if (gaps <= 0).any():
        number, _ = _rows(body)[int(np.argmax(gaps <= 0)) + 1]
        raise InvalidInputError(f"line {number}: {unit}s must be ascending")
    unit_s = HEADERS[header]
    step_s = unit_s or int(gaps.min() if gaps.size else MAX_STEP_S)
    in_s = times.astype(np.int64) * (unit_s or 1)
    length_s = int(in_s[-1] - in_s[0]) + step_s
    if length_s > MAX_TRACE_S:
        raise InvalidInputError(
            f"covers {length_s} seconds; at most {MAX_TRACE_S} (a year) are allowed"
        )
    offsets, beside = np.divmod(in_s - in_s[0], step_s)
    if step_s > MAX_STEP_S or beside.any():
        number, _ = _rows(body)[int(np.argmax(beside)) if beside.any() else 1]
        raise InvalidInputError(
            f"line {number}: timestamps must be a whole number of steps apart, of at most "
            f"{MAX_STEP_S} s"
        )
    counts = np.zeros(length_s // step_s)
    counts[offsets] = requests
    begin_s = int(in_s[0])
    return Trace(counts, step_s, begin_s, unit_s is None or begin_s >= _UNIX_TIME_FROM_S)


def _table(body: str) -> FloatArray:
    if not body.strip():
        raise InvalidInputError("has no rows")
    try:
        table: FloatArray = np.loadtxt(io.StringIO(body), delimiter=",", comments=None, ndmin=2)
    except ValueError:
        table = np.empty((0, 0))
    if table.shape[1] == 2:
        return table
    number, line = next(row for row in _rows(body) if not _is_pair(row[1]))
    raise InvalidInputError(f"line {number}: must be two numbers, not {line[:40]!r}")


def _rows(body: str) -> list[tuple[int, str]]:
    """Return the rows that are not empty, each with its line number in the file."""
    lines = enumerate(body.splitlines(), start=2)
    return [(number, line.strip()) for number, line in lines if line.strip()]


def _is_pair(line: str) -> bool:
    try:
        return len([float(cell) for cell in line.split(",")]) == 2
    except ValueError:
        return False
