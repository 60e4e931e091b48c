"""The record of each request of a load test."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class Outcome(IntEnum):
    """How a request ended. Other values, 100 and above, are HTTP error statuses."""

    UNANSWERED = 0
    """No answer by the end of the test: still in flight, or never sent."""
    OK = 1
    """HTTP 200 with the right answer."""
    WRONG = 2
    """HTTP 200 with an answer that differs from the model's own."""
    TIMEOUT = 3
    """No answer within the client's timeout."""
    CONNECTION = 4
    """The connection was refused, or closed before the answer was complete."""
    ANSWERED = 5
    """HTTP 200 with outputs; the right answer is not known."""


GOOD = (Outcome.OK, Outcome.ANSWERED)
"""Outcomes with an answer that is not known to be wrong."""

LOST = (Outcome.UNANSWERED, Outcome.TIMEOUT, Outcome.CONNECTION)
"""Outcomes without any answer."""

REFUSED = (429, 503, 504)
"""Statuses of requests that the service refused, or gave up, to protect the others."""


def outcome_name(outcome: int) -> str:
    """Return the status of an HTTP error, or the name of another outcome in lower case."""
    return str(outcome) if outcome >= 100 else Outcome(outcome).name.lower()


@dataclass(frozen=True, eq=False)
class Records:
    """One row per request, in the order they were due; times in seconds from the test's start.

    Attributes
    ----------
    scheduled_s, sent_s, finished_s : ndarray of float, shape (n,)
        When each request was due, was sent, and was answered or failed; NaN if it never was.
    outcome : ndarray of int16, shape (n,)
        An `Outcome`, or the status of an HTTP error.
    connection_wait_s : ndarray of float, shape (n,)
        How long it waited for a connection because the service kept every one busy; 0 if one was
        free, or if the generator did not come to read what the service had answered.
    """

    scheduled_s: FloatArray
    sent_s: FloatArray
    finished_s: FloatArray
    outcome: NDArray[np.int16]
    connection_wait_s: FloatArray

    @classmethod
    def begin(cls, scheduled_s: FloatArray) -> "Records":
        n = scheduled_s.size
        return cls(
            scheduled_s=scheduled_s,
            sent_s=np.full(n, np.nan),
            finished_s=np.full(n, np.nan),
            outcome=np.full(n, Outcome.UNANSWERED, dtype=np.int16),
            connection_wait_s=np.zeros(n),
        )

    @classmethod
    def interleaved(cls, parts: Sequence["Records"]) -> "Records":
        """Return the records of a test of which each of n parts has every nth request."""
        whole = cls.begin(np.empty(sum(part.outcome.size for part in parts)))
        for number, part in enumerate(parts):
            for name, values in vars(part).items():
                getattr(whole, name)[number :: len(parts)] = values
        return whole

    def save(self, path: Path) -> None:
        np.savez(path, **vars(self))

    @classmethod
    def load(cls, path: Path) -> "Records":
        with np.load(path, allow_pickle=False) as file:
            return cls(**{name: file[name] for name in file.files})

    @property
    def response_ms(self) -> FloatArray:
        """Response times from when each request was due, shape (n,); NaN without an end."""
        return (self.finished_s - self.scheduled_s) * 1000

    @property
    def lag_ms(self) -> FloatArray:
        """Delay of each request in the generator, except waits for the service; NaN if unsent."""
        return (self.sent_s - self.scheduled_s - self.connection_wait_s) * 1000

    @property
    def good(self) -> NDArray[np.bool_]:
        return np.isin(self.outcome, GOOD)

    @property
    def lost(self) -> NDArray[np.bool_]:
        return np.isin(self.outcome, LOST)
