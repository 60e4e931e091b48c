"""What became of each request of a load test."""

from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class Outcome(IntEnum):
    """How a request ended; an HTTP error is its status, 100 and above."""

    UNANSWERED = 0
    """No answer by the end of the test: still on its way, or never sent."""
    OK = 1
    """HTTP 200 with the right answer."""
    WRONG = 2
    """HTTP 200 with another answer than the model's own."""
    TIMEOUT = 3
    """No answer within the client's patience."""
    CONNECTION = 4
    """The connection was refused, or broke before the answer was whole."""


LOST = (Outcome.UNANSWERED, Outcome.TIMEOUT, Outcome.CONNECTION)
"""Outcomes in which the client never got an answer at all."""


@dataclass(frozen=True, eq=False)
class Records:
    """One row per request, in the order they were due; times in seconds from the test's start.

    Attributes
    ----------
    scheduled_s : ndarray of float, shape (n,)
        When each was due.
    sent_s : ndarray of float, shape (n,)
        When it was sent; NaN where it never was.
    finished_s : ndarray of float, shape (n,)
        When its answer, or its failure, was there; NaN where neither came.
    outcome : ndarray of int16, shape (n,)
        An `Outcome`, or the status of an HTTP error.
    queued : ndarray of bool, shape (n,)
        Whether it found every connection taken when it was due, and had to wait for one.
    label_true : ndarray of int8, shape (n,)
        For right answers to an input whose true label is known: whether the model had it. Else -1.
    """

    scheduled_s: FloatArray
    sent_s: FloatArray
    finished_s: FloatArray
    outcome: NDArray[np.int16]
    queued: NDArray[np.bool_]
    label_true: NDArray[np.int8]

    @classmethod
    def begin(cls, scheduled_s: FloatArray) -> "Records":
        """Make the records of requests none of which has been sent."""
        n = scheduled_s.size
        return cls(
            scheduled_s=scheduled_s,
            sent_s=np.full(n, np.nan),
            finished_s=np.full(n, np.nan),
            outcome=np.full(n, Outcome.UNANSWERED, dtype=np.int16),
            queued=np.zeros(n, dtype=np.bool_),
            label_true=np.full(n, -1, dtype=np.int8),
        )

    def save(self, path: Path) -> None:
        """Write them to an ``.npz`` file."""
        np.savez(path, allow_pickle=False, **vars(self))

    @classmethod
    def load(cls, path: Path) -> "Records":
        """Read what `save` wrote."""
        with np.load(path, allow_pickle=False) as file:
            return cls(**{name: file[name] for name in file.files})

    @property
    def response_ms(self) -> FloatArray:
        """Response times, each from when the request was due; NaN where there was no end."""
        return (self.finished_s - self.scheduled_s) * 1000

    @property
    def lost(self) -> NDArray[np.bool_]:
        """Which requests never got an answer."""
        return np.isin(self.outcome, LOST)
