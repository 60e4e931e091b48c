"""The exceptions of Sojourn: one small tree, each message one line for the person who reads it.

::

    SojournError
    ├── InvalidInputError     a value given is wrong; the message says what is allowed
    ├── InfeasibleError       the input is sound, but nothing can do what it asks
    ├── StartError            the service could not be brought up on this machine
    └── RequestError          one request failed; carries its HTTP status
        ├── BadRequestError       400  the request is wrong
        ├── NotFoundError         404  no such model, version or path
        ├── MethodNotAllowedError 405  the path exists, the method does not
        ├── TooLargeError         413  the body or the number of rows is over the limit
        ├── UnsupportedEncodingError 415  the body is packed in a way that is not known here
        ├── ModelError            500  the model failed on this request
        ├── BusyError             503  no room now; another replica, or a later try, may have some
        └── DeadlineError         504  its own deadline passed, or cannot be met any more
"""


class SojournError(Exception):
    """Root of every error that Sojourn raises on purpose."""


class InvalidInputError(SojournError):
    """A value given by the user is wrong: the message says which, and what is allowed."""


class InfeasibleError(SojournError):
    """The input is sound, but nothing can do what it asks."""


class StartError(SojournError):
    """The service could not be brought up on this machine."""


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


class ModelError(RequestError):
    """The model failed on this request."""

    status = 500


class BusyError(RequestError):
    """There is no room now: another replica, or a later try, may have some."""

    status = 503


class DeadlineError(RequestError):
    """The request's own deadline passed before its answer, or cannot be met any more."""

    status = 504
