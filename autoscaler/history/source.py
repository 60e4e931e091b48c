"""Where a service's past load is to be read from: a file, or a Prometheus server.

In the config, `history` is the name of a file, or one of

    {file: week.csv.gz, ends: now}
    {prometheus: "http://prometheus:9090", query: "sum(rate(requests_total[1m]))"}
"""

import gzip
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from autoscaler.history.learning import DAY_S, KEPT_DAYS
from autoscaler.history.prometheus import query_range
from autoscaler.history.traces import Trace, read_file, read_trace, unix_time_s, unzipped
from policy.errors import InvalidInputError

#: The value of `ends` that puts the end of a file at the time at which it is learned from.
NOW = "now"
#: A file is stored in the cluster, gzipped, so it must not be too large.
_MAX_BYTES = 32 << 20
#: Later than any history begins.
_LATE_S = 2.0**40


@dataclass(frozen=True)
class HistorySource:
    """A file, or a query to Prometheus.

    Attributes
    ----------
    file : str
        A trace (`autoscaler.history.traces`); empty if Prometheus is asked.
    ends : str
        When the file ends, if that is not in it: `NOW`, or a time as in a ``timestamp`` column.
    prometheus : str
        URL of the server.
    query : str
        PromQL for requests per second, over the minute before each point.

    Raises
    ------
    InvalidInputError
        A value is missing, superfluous, or out of range.
    """

    file: str = ""
    ends: str = ""
    prometheus: str = ""
    query: str = ""

    def __post_init__(self) -> None:
        if bool(self.file) == bool(self.prometheus):
            raise InvalidInputError("history: must have either `file` or `prometheus`")
        if self.file and self.query:
            raise InvalidInputError("history: `query` belongs to `prometheus`")
        if self.prometheus:
            if self.ends:
                raise InvalidInputError("history: `ends` belongs to `file`")
            if not self.query:
                raise InvalidInputError("history: `prometheus` needs a `query`")
            if not self.prometheus.startswith(("http://", "https://")):
                raise InvalidInputError(
                    f"history: prometheus must be a URL of http or https, not {self.prometheus!r}"
                )
            object.__setattr__(self, "prometheus", self.prometheus.rstrip("/"))
        if self.ends not in ("", NOW) and unix_time_s(self.ends) is None:
            raise InvalidInputError(
                f"history: ends must be `now` or like 2026-11-22T10:00:00Z, not {self.ends!r}"
            )

    @classmethod
    def parse(cls, content: object) -> "HistorySource":
        """Read the setting `history` of a config.

        Raises
        ------
        InvalidInputError
            It is wrong; one line says what is allowed.
        """
        if isinstance(content, str):
            content = {"file": content}
        if not isinstance(content, Mapping):
            raise InvalidInputError(
                "history: must be the name of a file, or have `file` or `prometheus`"
            )
        fields = cls.__dataclass_fields__
        for name, value in content.items():
            if name not in fields:
                raise InvalidInputError(f"history: {name} must be one of {', '.join(fields)}")
            if not isinstance(value, str):
                # YAML reads a time without quotes as a datetime, which `serve deploy` cannot send.
                raise InvalidInputError(f"history: {name} must be text, in quotes, not {value!r}")
        return cls(**content)

    def check(self, directory: str | Path = ".") -> None:
        """Check a file as far as can be known before it is used; Prometheus is not asked.

        Parameters
        ----------
        directory : str or Path
            In which the file is.

        Raises
        ------
        InvalidInputError
            The file cannot be read or used.
        """
        if self.file:
            self.trace(self.content(directory), _LATE_S)

    def content(self, directory: str | Path = ".") -> bytes:
        """Return the content of the file; nothing if Prometheus is asked.

        Raises
        ------
        InvalidInputError
            It cannot be read, or is too large.
        """
        return unzipped(self._read(directory), self.file, self._name) if self.file else b""

    def trace(self, content: bytes, now_s: float) -> Trace:
        """Return the past load until now, in Unix time.

        Parameters
        ----------
        content : bytes
            Of the file.
        now_s : float
            Unix time.

        Raises
        ------
        UnreachableError
            Prometheus does not answer.
        InvalidInputError
            There is no usable history.
        """
        if self.prometheus:
            return query_range(
                self.prometheus, self.query, int(now_s) - KEPT_DAYS * DAY_S, int(now_s)
            )
        trace = read_trace(content, self._name)
        if self.ends:
            end_s = None if self.ends == NOW else unix_time_s(self.ends)
            return trace.ending_at(int(now_s) if end_s is None else end_s)
        if not trace.is_absolute:
            raise InvalidInputError(
                f"{self._name}: does not say when it was; add `ends: now`, or a column `timestamp`"
            )
        if trace.begin_s > now_s:
            raise InvalidInputError(f"{self._name}: begins in the future")
        return trace

    def pack(self, directory: str | Path = ".") -> "PackedHistory":
        """Return what a cluster has to store for whoever learns from it.

        Raises
        ------
        InvalidInputError
            The file cannot be read, or is too large.
        """
        source = json.dumps(asdict(self)).encode()
        content = self._read(directory) if self.file else b""
        if not self.file.endswith(".gz"):
            content = gzip.compress(content, 1, mtime=0)
        packed = source + b"\n" + content
        if len(packed) > _MAX_BYTES:
            raise InvalidInputError(
                f"{self._name}: takes {len(packed) >> 20} MiB gzipped; at most "
                f"{_MAX_BYTES >> 20} are allowed"
            )
        # A report carries the code as a float, which is exact up to 2^53.
        code = int.from_bytes(hashlib.sha256(packed).digest()[:6]) or 1
        return PackedHistory(code, packed)

    @property
    def _name(self) -> str:
        return f"history {self.file}"

    def _read(self, directory: str | Path) -> bytes:
        return read_file(Path(directory) / self.file, self._name)


@dataclass(frozen=True)
class PackedHistory:
    """A source and the content of its file, as a cluster stores them.

    Attributes
    ----------
    code : int
        Tells one from another; at least 1, and exact as a float.
    content : bytes
    """

    code: int
    content: bytes


def unpack(content: bytes) -> tuple[HistorySource, bytes]:
    """Return the source and the content of its file.

    Raises
    ------
    InvalidInputError
        It is not what `HistorySource.pack` returned.
    """
    described, _, packed = content.partition(b"\n")
    try:
        source = HistorySource(**json.loads(described))
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"history: not usable ({error!r})") from error
    return source, unzipped(packed, ".gz", f"history {source.file}")


def store_history(
    source: HistorySource, read: Callable[[], bytes | None], save: Callable[[bytes], object]
) -> int:
    """Store a history, unless it is stored already, and return its code; this may block.

    Parameters
    ----------
    source : HistorySource
    read : callable
        Returns what is stored; None if there is nothing.
    save : callable
        Stores what it is given.

    Raises
    ------
    InvalidInputError
        The file cannot be read, or is too large.
    """
    packed = source.pack()
    if read() != packed.content:
        save(packed.content)
    return packed.code
