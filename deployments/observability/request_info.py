"""Metadata of a request, for its answer, the log and its trace."""

import itertools
import secrets
from dataclasses import dataclass

from deployments.observability.tracing import RequestTrace

#: The header of W3C Trace Context.
TRACEPARENT = b"traceparent"


@dataclass(slots=True)
class RequestInfo:
    """One HTTP request; its `traceparent` is unchecked, `token` is the name of the one it had.

    `model` is that of its path where there are several.
    """

    request_id: bytes
    traceparent: bytes | None = None
    token: str | None = None
    trace: RequestTrace | None = None
    model: str | None = None

    def end_trace(self, status: int) -> None:
        if self.trace is not None:
            self.trace.tracing.end(self.trace, self, status)


class RequestIds:
    """Creates ids that are unique in a process and, by a random prefix, between processes."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(8).encode()
        self._numbers = itertools.count()

    def make(self) -> bytes:
        """Return a new id, such as ``b"9f86d081884c7d65-2a"``."""
        return b"%b-%x" % (self._prefix, next(self._numbers))
