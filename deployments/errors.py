"""What the service and its HTTP front raise.

Each message is one line for the person who reads it; a `RequestError`'s goes to the client.
::

    SojournError (policy.errors)
    ├── StartError            the service could not start on this machine
    ├── RowsError             some rows of a batch failed; carries each row's error
    └── RequestError          one request failed; carries its HTTP status
        ├── BadRequestError       400  the request is malformed
        ├── NotFoundError         404  no such model, version or path
        ├── MethodNotAllowedError 405  the path exists, the method does not
        ├── TooLargeError         413  the body or the number of rows exceeds the limit
        ├── UnsupportedEncodingError 415  unknown Content-Encoding
        ├── CrowdedOutError       429  its batch failed and the retry queue is full
        ├── ModelError            500  the model failed on this request
        ├── BusyError             503  no room now; another replica, or a later try, may have some
        ├── DeviceError           503  this replica's device hangs or is lost; another may answer
        └── DeadlineError         504  its own deadline passed, or can no longer be met
"""

from collections.abc import Mapping

from policy.errors import SojournError


class StartError(SojournError):
    """The service could not be brought up on this machine."""


class RowsError(SojournError):
    """Some rows of a batch failed: raised by a model that knows which.

    Their requests are told; all others of the batch are run again at once.

    Parameters
    ----------
    errors : mapping of int to RequestError
        What the sender of each row is told, by the row's place in the batch, from 0.
    """

    def __init__(self, errors: Mapping[int, "RequestError"]) -> None:
        if not all(isinstance(error, RequestError) for error in errors.values()):
            raise TypeError("RowsError takes a RequestError for each row")
        super().__init__(f"{len(errors)} rows of the batch failed")
        self.errors = dict(errors)


class RequestError(SojournError):
    """One request failed.

    Attributes
    ----------
    status : int
        HTTP status code of the answer.
    """

    status = 500


class BadRequestError(RequestError):
    """The request is wrong: the message says what, and what is allowed."""

    status = 400


class NotFoundError(RequestError):
    """There is no such model, version or path."""

    status = 404


class MethodNotAllowedError(RequestError):
    """The path exists, but not with this method."""

    status = 405


class TooLargeError(RequestError):
    """The body, or its number of rows, is over the limit."""

    status = 413


class UnsupportedEncodingError(RequestError):
    """The body is packed in a way that is not known here."""

    status = 415


class CrowdedOutError(RequestError):
    """Its batch failed, as so many did that there is no room to find out whose fault it is.

    Not 503, which another replica would be tried after: it may be the one that fails batches.
    """

    status = 429


class ModelError(RequestError):
    """The model failed on this request."""

    status = 500


class BusyError(RequestError):
    """There is no room now: another replica, or a later try, may have some."""

    status = 503


class DeviceError(RequestError):
    """The device of this replica hangs or is lost: another replica may answer.

    It may be sent there at once, since inference has no side effects.
    """

    status = 503


class DeadlineError(RequestError):
    """The request's own deadline passed before its answer, or cannot be met any more."""

    status = 504
