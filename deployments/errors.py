"""Errors of the service and its HTTP interface.

Every message is one line for the person who reads it. The message of a `RequestError` is sent to
the client. A model of your own may raise `RowsError` and any `RequestError`, imported from here;
`deployments.models.base.Model.forward` says what follows from each.
::

    SojournError (policy.errors)
    ├── StartError                     the service could not start on this machine
    ├── WorkerError (autoscaler.worker) a process that computes for this one failed
    ├── RowsError                      some rows of a batch failed; maps each row to its error
    └── RequestError                   one request failed; carries its HTTP status
        ├── BadRequestError          400  the request is malformed
        ├── UnauthorizedError        401  the request has no token, or an unknown one
        ├── ForbiddenError           403  its token does not allow this
        ├── NotFoundError            404  no such model, version or path
        ├── MethodNotAllowedError    405  the path exists, but not for this method
        ├── RequestTimeoutError      408  the request did not arrive in time
        ├── TooLargeError            413  the body or its number of rows exceeds the limit
        ├── UnsupportedEncodingError 415  unknown Content-Encoding
        ├── CrowdedOutError          429  the batch failed and the retry queue is full
        ├── RateLimitedError         429  the token has used its rate
        ├── PlannerBusyError         429  the console's planner answers another question
        ├── HeadTooLargeError        431  the request line and the header fields are too large
        ├── ModelError               500  the model failed on this request
        ├── ReplicaDiedError         500  a replica died while it computed this request
        ├── BusyError                503  this replica has no room; another may have
        ├── DeviceError              503  this replica's device hangs or is lost; another may answer
        └── DeadlineError            504  the request's deadline passed or can no longer be met
"""

from collections.abc import Mapping

from policy.errors import SojournError


class StartError(SojournError):
    """The service could not start on this machine."""


class RowsError(SojournError):
    """Some rows of a batch failed. Raised by a model that knows which ones.

    Each failed row's error goes to the client that sent the row. All other requests of the batch
    are run again at once.

    Parameters
    ----------
    errors : mapping of int to RequestError
        The error of each failed row, by the row's index in the batch, starting at 0.

    Raises
    ------
    TypeError
        A value is not a `RequestError`.
    """

    def __init__(self, errors: Mapping[int, "RequestError"]) -> None:
        if not all(isinstance(error, RequestError) for error in errors.values()):
            raise TypeError("RowsError takes a RequestError for each row")
        super().__init__(f"{len(errors)} rows of the batch failed")
        self.errors = dict(errors)


class RequestError(SojournError):
    """One request failed; the client receives the message.

    Attributes
    ----------
    status : int
        HTTP status code of the response.
    reason : str or None
        Of a refusal: why, for programs, in the header ``X-Sojourn-Reason``.
    retry_after_s : int
        Of status 429 or 503: when the client may try again, for the ``Retry-After`` header.
    """

    status = 500
    reason: str | None = None
    retry_after_s = 1


class BadRequestError(RequestError):
    """The request is malformed. The message names the error and the allowed values."""

    status = 400


class UnauthorizedError(RequestError):
    """The request has no token, or one that is unknown.

    Parameters
    ----------
    invalid : bool
        Whether the request has a token, but not a valid one.

    Attributes
    ----------
    challenge : str
        The value of the ``WWW-Authenticate`` header (RFC 6750, section 3).
    """

    status = 401

    def __init__(self, message: str, *, invalid: bool = False) -> None:
        super().__init__(message)
        self.challenge = 'Bearer realm="sojourn"' + (', error="invalid_token"' if invalid else "")


class ForbiddenError(RequestError):
    """The request's token does not allow this.

    Parameters
    ----------
    scope : str
        What the token would have to allow.

    Attributes
    ----------
    challenge : str
        The value of the ``WWW-Authenticate`` header (RFC 6750, section 3).
    """

    status = 403

    def __init__(self, message: str, scope: str) -> None:
        super().__init__(message)
        self.challenge = f'Bearer realm="sojourn", error="insufficient_scope", scope="{scope}"'


class NotFoundError(RequestError):
    """The model, version or path does not exist."""

    status = 404


class MethodNotAllowedError(RequestError):
    """The path exists, but not for this HTTP method.

    Parameters
    ----------
    allowed : tuple of str
        The methods that the path accepts; they are sent in the ``Allow`` header.
    """

    status = 405

    def __init__(self, message: str, allowed: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.allowed = allowed


class RequestTimeoutError(RequestError):
    """The client took too long to send the request."""

    status = 408


class TooLargeError(RequestError):
    """The body, or its number of rows, exceeds the limit."""

    status = 413


class UnsupportedEncodingError(RequestError):
    """The request's Content-Encoding is not supported."""

    status = 415


class CrowdedOutError(RequestError):
    """The request's batch failed, and the queue of requests to retry is full.

    The status is not 503, because HAProxy would then send the request to another replica, and the
    request may be the one that makes batches fail.
    """

    status = 429
    reason = "queue_full"


class RateLimitedError(RequestError):
    """The request's token has used its rate; HAProxy does not try another replica."""

    status = 429
    reason = "rate_limit"

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ModelError(RequestError):
    """The model failed on this request."""

    status = 500


class PlannerBusyError(RequestError):
    """Too many questions wait for the console's planner. Ask again."""

    status = 429


class HeadTooLargeError(RequestError):
    """The request line and the header fields are too large, or the fields too many."""

    status = 431


class ReplicaDiedError(RequestError):
    """A replica died, or lost its device, while it computed this request, perhaps because of it.

    The status is not 503, because HAProxy would then send the request to another replica.
    """

    status = 500


class BusyError(RequestError):
    """The replica has no room. Another replica may have some, and this one may later.

    Parameters
    ----------
    reason : str
        ``queue_full``, ``deadline``, ``memory``, ``loading``, ``suspected`` or ``stopping``.
    """

    status = 503

    def __init__(self, message: str, reason: str = "queue_full") -> None:
        super().__init__(message)
        self.reason = reason


class DeviceError(RequestError):
    """The replica's device hangs or is lost. Another replica may answer.

    HAProxy retries there at once; inference has no side effects, so that is safe.
    """

    status = 503
    reason = "device_lost"


class DeadlineError(RequestError):
    """The request's own deadline, or the SLA's, passed or can no longer be met."""

    status = 504
    reason = "deadline"
