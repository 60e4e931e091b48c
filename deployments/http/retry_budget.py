"""Which refused requests HAProxy may try at another replica.

A retry finds room if the others have some. Under an overload of all replicas none has: each request
would be refused up to six times, and the fronts would refuse nine times for each answer at twice
what they can take. So a replica has some of its refusals be final, the more the others refuse of
what they are asked, by HAProxy's count (`deployments.haproxy.other_replicas`).
"""

from collections import Counter
from collections.abc import Mapping

#: Up to this share refused elsewhere all refusals may be tried there. Six independent tries then
#: fail for 1.6% of the requests, so a fleet that keeps a usual SLA is below it.
ALL_UP_TO = 0.5
#: From this share on none may.
NONE_FROM = 0.7
#: What a replica answered counts for half of that after each tick.
_KEEP = 0.5


class RefusalsOfErrors:
    """The share of refusals in a replica's own answers with a 5xx status."""

    def __init__(self) -> None:
        self._before: Counter[int] = Counter()
        self._refused = self._errors = 0.0

    def take(self, answers: Mapping[int, int]) -> float:
        """Return the share in the last ticks, 1 if there were no such answers.

        Parameters
        ----------
        answers : mapping of int to int
            The answers since the start, by status.
        """
        now = Counter({status: count for status, count in answers.items() if status >= 500})
        new, self._before = now - self._before, now
        self._refused = _KEEP * self._refused + new[503]
        self._errors = _KEEP * self._errors + new.total()
        return self._refused / self._errors if self._errors >= 1.0 else 1.0


class RetryBudget:
    """Decides it for one refusal after the other.

    Attributes
    ----------
    refused_elsewhere : float
        The share that the other replicas refuse of what they are asked, 0 to 1.
    refused_finally : int
        Rows of the refused requests that may not be tried elsewhere.
    """

    def __init__(self) -> None:
        self.refused_elsewhere = 0.0
        self.refused_finally = 0
        self._left = 0.0

    def take(self, rows: int) -> bool:
        """Return whether the next refused request, of `rows` rows, may be tried elsewhere."""
        if self.refused_elsewhere <= ALL_UP_TO:
            return True
        self._left += max(0.0, NONE_FROM - self.refused_elsewhere) / (NONE_FROM - ALL_UP_TO)
        if self._left < 1.0:
            self.refused_finally += rows
            return False
        self._left -= 1.0
        return True
