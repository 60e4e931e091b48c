"""What holds a server up at its work: other threads that use its CPU, or its lock.

In a profile's file::

    "interruptions": {"share": 0.2, "lengths_ms": [0.1, 0.15, 0.4, 6.0]}

The times of a profile are means that include the interruptions. These say how unevenly they come,
which decides how far response times spread: a tenth of the time lost in pieces of 10 ms delays more
requests than one lost in pieces of 0.1 ms.
"""

import math
from dataclasses import dataclass
from typing import Any

from policy.errors import InvalidInputError
from policy.profile_parts import check_keys, check_number


@dataclass(frozen=True)
class Interruptions:
    """The interruptions of a server's work, which come as a Poisson process while it works.

    They hold up the front, and the device as well where it shares the front's CPU.

    Attributes
    ----------
    share : float
        Fraction of the time in which the server has work for which it is held up, in [0, 1).
    lengths_ms : tuple of float
        Equally likely lengths, above 0 and finite.

    Raises
    ------
    InvalidInputError
        The share or a length is out of range, or there is no length.
    """

    share: float
    lengths_ms: tuple[float, ...]

    def __post_init__(self) -> None:
        check_number("interruptions", "share", self.share)
        for length_ms in self.lengths_ms:
            check_number("interruptions", "each of lengths_ms", length_ms)
        if not 0 <= self.share < 1:
            raise InvalidInputError(
                f"interruptions: share must be at least 0 and below 1, not {self.share:g}"
            )
        if not self.lengths_ms or not all(0 < ms < math.inf for ms in self.lengths_ms):
            raise InvalidInputError(
                "interruptions: lengths_ms must be finite and above 0, at least one"
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
        kept = tuple(ms for ms in self.lengths_ms if ms >= least_ms)
        if not kept:
            return None
        return Interruptions(self.share * sum(kept) / sum(self.lengths_ms), kept)

    @classmethod
    def from_dict(cls, content: object) -> "Interruptions":
        """Make the interruptions from the content of a profile file.

        Raises
        ------
        InvalidInputError
            The content is not an object with these keys, or a value is out of range.
        """
        found = check_keys("interruptions", content, ["share", "lengths_ms"])
        lengths_ms = found["lengths_ms"]
        if not isinstance(lengths_ms, list | tuple):
            raise InvalidInputError(f"interruptions: lengths_ms must be a list, not {lengths_ms!r}")
        return cls(found["share"], tuple(lengths_ms))

    def to_dict(self) -> dict[str, Any]:
        """Return the content for a profile file."""
        return {"share": self.share, "lengths_ms": list(self.lengths_ms)}
