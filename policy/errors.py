"""The root of Sojourn's exceptions, and the two that the mathematics raises.

Each message is one line for the user. `deployments.errors` has the rest of the tree. ::

    SojournError
    ├── InvalidInputError     a value is wrong; the message says what is allowed
    └── InfeasibleError       the input is valid, but no solution exists
"""

from collections.abc import Iterator
from contextlib import contextmanager


class SojournError(Exception):
    """Base class of every error that Sojourn raises on purpose."""


class InvalidInputError(SojournError):
    """A value given by the user is wrong; the message says which, and what is allowed."""


class InfeasibleError(SojournError):
    """The input is valid, but nothing can do what it asks."""


@contextmanager
def file_errors(name: str) -> Iterator[None]:
    """Raise `InvalidInputError` if a file of the user's, or a place for one, cannot be used."""
    try:
        yield
    except OSError as error:
        raise InvalidInputError(f"{name}: {error.strerror}") from error
