"""What holds a server up at its work: other threads that use its CPU, or its lock.

In a profile's file::

    "interruptions": {"share": 0.2, "lengths_ms": [0.1, 0.15, 0.4, 6.0]}

The times of a profile are means that include the interruptions. These say how unevenly they come,
which decides how far response times spread: a tenth of the time lost in pieces of 10 ms delays more
requests than one lost in pieces of 0.1 ms. So does one lost in pieces that follow each other::

    "interruptions": {"share": 0.2, "lengths_ms": [0.1, 0.4, 6.0], "work_ms": [20.0, 0.1, 5.9]}
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policy.errors import InvalidInputError
from policy.profile_parts import check_keys, check_number

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Interruptions:
    """The interruptions of a server's work.

    They hold up the front, and the device as well where it shares the front's CPU. They come as a
    Poisson process while it works, or as they came when they were recorded.

    Attributes
    ----------
    share : float
        Fraction of the time in which the server has work for which it is held up, in [0, 1).
    lengths_ms : tuple of float
        Equally likely lengths, above 0 and finite.
    work_ms : tuple of float
        The work before each of them, since the one before, in the order in which they came. Only
        the proportions count, as `share` gives the sum. Empty: they come as a Poisson process.

    Raises
    ------
    InvalidInputError
        The share or a time is out of range, there is no length, or not as much work as lengths.
    """

    share: float
    lengths_ms: tuple[float, ...]
    work_ms: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_number("interruptions", "share", self.share)
        if not 0 <= self.share < 1:
            raise InvalidInputError(
                f"interruptions: share must be at least 0 and below 1, not {self.share:g}"
            )
        for name, values in (("lengths_ms", self.lengths_ms), ("work_ms", self.work_ms)):
            array = np.array(values, dtype=np.float64)
            if not ((array > 0) & np.isfinite(array)).all():
                raise InvalidInputError(f"interruptions: {name} must be finite and above 0")
        if not self.lengths_ms:
            raise InvalidInputError("interruptions: lengths_ms must have at least one length")
        if self.work_ms and len(self.work_ms) != len(self.lengths_ms):
            raise InvalidInputError(
                f"interruptions: work_ms must have a value for each of lengths_ms "
                f"({len(self.lengths_ms)}), not {len(self.work_ms)}"
            )

    @property
    def mean_ms(self) -> float:
        """The mean length."""
        return sum(self.lengths_ms) / len(self.lengths_ms)

    @property
    def per_ms(self) -> float:
        """Interruptions per millisecond of work, not counting the time that they take."""
        return self.share / (1 - self.share) / self.mean_ms

    @property
    def mean_residual_ms(self) -> float:
        """For how long, on average, a busy server is still held up at a random time."""
        squares = sum(ms**2 for ms in self.lengths_ms)
        return self.share * squares / (2 * sum(self.lengths_ms))

    def at_least_ms(self, least_ms: float) -> "Interruptions | None":
        """Return those of at least this length, as if the shorter ones were work; None if none."""
        lengths_ms = np.array(self.lengths_ms)
        kept_ms = lengths_ms[lengths_ms >= least_ms]
        if not kept_ms.size:
            return None
        share = self.share * float(kept_ms.sum() / lengths_ms.sum())
        work_ms: FloatArray = np.zeros(0)
        if self.work_ms and self.share:
            kept_ms, work_ms = without_short(lengths_ms, self.scaled_work_ms(), least_ms)
        return Interruptions(share, tuple(kept_ms.tolist()), tuple(work_ms.tolist()))

    def scaled_work_ms(self) -> FloatArray:
        """Return the work before each, in the proportion to the lengths that `share` says."""
        work_ms = np.array(self.work_ms)
        return work_ms / (self.per_ms * float(work_ms.mean()))

    @classmethod
    def from_dict(cls, content: object) -> "Interruptions":
        """Make the interruptions from the content of a profile file.

        Raises
        ------
        InvalidInputError
            The content is not an object with `share`, `lengths_ms` and nothing else but `work_ms`,
            or a value is out of range.
        """
        found = check_keys("interruptions", content, ["share", "lengths_ms"], optional=["work_ms"])
        lists = []
        for name in ("lengths_ms", "work_ms"):
            values_ms = found.get(name, ())
            if not isinstance(values_ms, list | tuple):
                raise InvalidInputError(f"interruptions: {name} must be a list, not {values_ms!r}")
            for value_ms in values_ms:
                check_number("interruptions", f"each of {name}", value_ms)
            lists.append(tuple(values_ms))
        return cls(found["share"], *lists)

    def to_dict(self) -> dict[str, Any]:
        """Return the content for a profile file."""
        work = {"work_ms": list(self.work_ms)} if self.work_ms else {}
        return {"share": self.share, "lengths_ms": list(self.lengths_ms), **work}


def without_short(
    lengths: FloatArray, work: FloatArray, least: float
) -> tuple[FloatArray, FloatArray]:
    """Return recorded interruptions as if those shorter than `least` were work.

    Parameters
    ----------
    lengths, work : ndarray of float, shape (interruptions,)
        The length of each, and the work before it since the one before, in the same unit. They
        recur. At least one is as long as `least`.
    least : float

    Returns
    -------
    lengths, work : ndarray of float, shape (kept,)
        Of those that are left.
    """
    kept = np.flatnonzero(lengths >= least)
    passed = np.cumsum(work + np.where(lengths >= least, 0.0, lengths))
    before = np.diff(passed[kept], prepend=0.0)
    before[0] += passed[-1] - passed[kept[-1]]  # what comes after the last comes before the first
    return lengths[kept], before
