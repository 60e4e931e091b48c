"""Read traces: the number of requests in each second.

A trace is a CSV file, plain or gzipped, with the header ``second,requests`` and a row per second,
seconds ascending. A second that is missing had no requests. The run begins with the first second
in the file.
"""

import gzip
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from policy.errors import InvalidInputError

HEADER = "second,requests"
#: A longer trace has a mistake in its seconds.
MAX_TRACE_S = 366 * 86_400

IntArray = NDArray[np.int64]


def load_trace(path: str | Path) -> IntArray:
    """Read a trace.

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
        The file cannot be read or is not a trace.
    """
    try:
        content = Path(path).read_bytes()
        if str(path).endswith(".gz"):
            content = gzip.decompress(content)
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"trace {path}: not text") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InvalidInputError(f"trace {path}: incomplete, or not gzipped") from error
    except OSError as error:
        raise InvalidInputError(f"trace {path}: {error.strerror}") from error
    try:
        return _counts(lines)
    except InvalidInputError as error:
        raise InvalidInputError(f"trace {path}: {error}") from error


def _counts(lines: list[str]) -> IntArray:
    if not lines or lines[0].strip() != HEADER:
        given = lines[0].strip()[:40] if lines else ""
        raise InvalidInputError(f"the first line must be {HEADER}, not {given!r}")
    rows = [(number, line) for number, line in enumerate(lines[1:], start=2) if line.strip()]
    if not rows:
        raise InvalidInputError("has no rows")
    try:
        table = np.array([line.split(",") for _, line in rows], dtype=np.float64)
    except ValueError:
        table = np.empty((0, 0))
    if table.ndim != 2 or table.shape[1] != 2:
        number, line = next(row for row in rows if not _is_pair(row[1]))
        raise InvalidInputError(f"line {number}: must be two numbers, not {line.strip()[:40]!r}")
    seconds, requests = table.T
    for values, name in ((seconds, "second"), (requests, "requests")):
        wrong = ~((values >= 0) & (values < 2**53) & (values == np.floor(values)))
        if wrong.any():
            number, line = rows[int(np.argmax(wrong))]
            raise InvalidInputError(
                f"line {number}: {name} must be a whole number of at least 0, not {line.strip()!r}"
            )
    falls = np.diff(seconds) <= 0
    if falls.any():
        number = rows[int(np.argmax(falls)) + 1][0]
        raise InvalidInputError(f"line {number}: seconds must be ascending")
    length = int(seconds[-1] - seconds[0]) + 1
    if length > MAX_TRACE_S:
        raise InvalidInputError(
            f"covers {length} seconds; at most {MAX_TRACE_S} (a year) are allowed"
        )
    counts = np.zeros(length, np.int64)
    counts[(seconds - seconds[0]).astype(np.int64)] = requests.astype(np.int64)
    return counts


def _is_pair(line: str) -> bool:
    cells = line.split(",")
    try:
        return len([float(cell) for cell in cells]) == 2
    except ValueError:
        return False
