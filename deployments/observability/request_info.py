"""Metadata of a request, for its answer, the log and its trace."""

from dataclasses import dataclass

from deployments.observability.tracing import RequestTrace

#: The header of W3C Trace Context.
TRACEPARENT = b"traceparent"


@dataclass(slots=True)
class RequestInfo:
    """One HTTP request.

    Attributes
    ----------
    request_id : bytes
        The client's, or one made here.
    traceparent : bytes or None
        Its header of that name, unchecked.
    token : str or None
        The name of its token, once it is admitted by one.
    trace : RequestTrace or None
        Its trace, if it is traced.
    """

    request_id: bytes
    traceparent: bytes | None = None
    token: str | None = None
    trace: RequestTrace | None = None
