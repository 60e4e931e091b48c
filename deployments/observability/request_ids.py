"""Ids for requests that arrive without one."""

import itertools
import secrets

_PREFIX_BYTES = 8


class RequestIds:
    """Creates ids that are unique in a process and, by a random prefix, between processes."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(_PREFIX_BYTES).encode()
        self._numbers = itertools.count()

    def make(self) -> bytes:
        """Return a new id, such as ``b"9f86d081884c7d65-2a"``."""
        return b"%b-%x" % (self._prefix, next(self._numbers))
