"""The source of a service's past load: a file, or a Prometheus server.

In the config, `history` is the name of a file, or

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
from autoscaler.history.traces import Trace, read_file, read_trace, unzipped
from policy.errors import InvalidInputError

#: A file is stored in the cluster, gzipped, so it must not be too large.
_MAX_BYTES = 32 << 20


@dataclass(frozen=True)
class HistorySource:
    """A file, or a query to Prometheus.

    Attributes
    ----------
    file : str
        A trace (`autoscaler.history.traces`); empty if Prometheus is asked. One whose times are not
        Unix times ends when it is learned from.
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
    prometheus: str = ""
    query: str = ""

    def __post_init__(self) -> None:
        if bool(self.file) == bool(self.prometheus):
            raise InvalidInputError("history: must have either `file` or `prometheus`")
        if bool(self.prometheus) != bool(self.query):
            raise InvalidInputError("history: `prometheus` and `query` belong together")
        if self.prometheus and not self.prometheus.startswith(("http://", "https://")):
            raise InvalidInputError(
                f"history: prometheus must be a URL of http or https, not {self.prometheus!r}"
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
                "history: must be the name of a file, or have `prometheus` and `query`"
            )
        for name, value in content.items():
            if name not in cls.__dataclass_fields__ or not isinstance(value, str):
                known = ", ".join(cls.__dataclass_fields__)
                raise InvalidInputError(f"history: {name} must be text, and one of {known}")
        return cls(**content)

    def check(self, directory: str | Path = ".") -> None:
        """Check a file before it is used; Prometheus is not asked.

        Parameters
        ----------
        directory : str or Path
            Folder of the file.

        Raises
        ------
        InvalidInputError
            The file cannot be read or used.
        """
        if self.file:
            name = self._name
            read_trace(
                unzipped(read_file(Path(directory) / self.file, name), self.file, name), name
            )

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
        if not trace.is_absolute:
            return trace.ending_at(int(now_s))
        if trace.begin_s > now_s:
            raise InvalidInputError(f"{self._name}: begins in the future")
        return trace

    def pack(self) -> "PackedHistory":
        """Return the source and its file as they are stored in a cluster.

        Raises
        ------
        InvalidInputError
            The file cannot be read, or is too large.
        """
        content = read_file(self.file, self._name) if self.file else b""
        if not self.file.endswith(".gz"):
            content = gzip.compress(content, 1, mtime=0)
        packed = json.dumps(asdict(self)).encode() + b"\n" + content
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


@dataclass(frozen=True)
class PackedHistory:
    """A source and the content of its file, as a cluster stores them.

    Attributes
    ----------
    code : int
        Identifies the content; at least 1, and exact as a float.
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
        Returns the stored history; None if there is none.
    save : callable
        Stores its argument.

    Raises
    ------
    InvalidInputError
        The file cannot be read, or is too large.
    """
    packed = source.pack()
    if read() != packed.content:
        save(packed.content)
    return packed.code
