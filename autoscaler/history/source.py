"""The source of a service's past load: a file, or a Prometheus server.

In the config, `history` is the name of a file, or

    {prometheus: "http://prometheus:9090", query: "sum(rate(requests_total[1m]))"}
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from autoscaler.history.prometheus import query_range
from autoscaler.history.traces import Trace, read_file, read_trace_file
from policy.errors import InvalidInputError

DAY_S = 86_400
#: No more days of a history are learned: forecasts look back two days.
KEPT_DAYS = 2


@dataclass(frozen=True)
class HistorySource:
    """A file, or a query to Prometheus for requests per second over the minute before each point.

    The file is a trace (`autoscaler.history.traces`). One whose times are not Unix times ends when
    it is learned from.
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
        """Read the setting `history` of a config, or raise `InvalidInputError`."""
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
        """Check a file before it is used; Prometheus is not asked."""
        if self.file:
            self._read(directory)

    def trace(self, now_s: float) -> Trace:
        """Return the past load until now, in Unix time. Blocks.

        `UnreachableError`: Prometheus does not answer. `InvalidInputError`: there is no usable
        history.
        """
        if self.prometheus:
            return query_range(
                self.prometheus, self.query, int(now_s) - KEPT_DAYS * DAY_S, int(now_s)
            )
        trace = self._read()
        if not trace.is_absolute:
            return trace.ending_at(int(now_s))
        if trace.begin_s > now_s:
            raise InvalidInputError(f"{self._name}: begins in the future")
        return trace

    def code(self) -> int:
        """Return a number that identifies the source and its file's content; at least 1."""
        content = read_file(self.file, self._name) if self.file else b""
        digest = hashlib.sha256(json.dumps(asdict(self)).encode() + content).digest()
        # A report carries the code as a float, which is exact up to 2^53.
        return int.from_bytes(digest[:6]) or 1

    def _read(self, directory: str | Path = ".") -> Trace:
        return read_trace_file(Path(directory) / self.file, self._name)

    @property
    def _name(self) -> str:
        return f"history {self.file}"
