"""When replicas may go: fewer were enough for a while, and noise will not want them back.

The hold is ski rental: a replica that is kept costs by the second, one that is let go and wanted
again costs its start. To keep it for as long as a start takes, and then let it go, costs at most
twice what a clairvoyant would pay (Karlin, Manasse, Rudolph and Sleator, Competitive snoopy
caching, 1988). That is for who knows nothing of the future. The demand here covers the time that
the next start takes, at a chosen risk, so longer than noise lasts the hold saves nothing: on half
a day of tweets with starts of 60 s, 60 s instead of 20 s cost 2.5% more, and kept no minute more.
"""

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

#: Standard deviations of Poisson noise, in the rate of a window, that must not undo a scale-in.
_NOISE_DEVIATIONS = 4.0


# Windows of the offered rate after which its noise is another's.
_NOISE_WINDOWS = 2


def measured_hold_s(start_time_s: float, window_s: float) -> float:
    """Give how long fewer replicas must have been enough: what noise needs, or a start at most.

    Parameters
    ----------
    start_time_s : float
        What a replica takes to start.
    window_s : float
        Over which the offered rate is measured.
    """
    return min(start_time_s, _NOISE_WINDOWS * window_s)


class ScaleInGuard:
    """Remembers the highest demand of the last while."""

    def __init__(self) -> None:
        # Times rise and demands fall: what a later and higher demand covers is dropped.
        self._demands: deque[tuple[float, float]] = deque()
        self._since_s: float | None = None

    def observe(self, now_s: float, demand_per_s: float, hold_s: float) -> None:
        """Take in the demand of now; what is older than `hold_s` is forgotten."""
        if self._since_s is None:
            self._since_s = now_s
        demands = self._demands
        while demands and demands[-1][1] <= demand_per_s:
            demands.pop()
        demands.append((now_s, demand_per_s))
        while demands[0][0] < now_s - hold_s:
            demands.popleft()

    def interrupt(self) -> None:
        """Note that nothing is known of now: the hold begins anew."""
        self._since_s = None

    def watched_s(self, now_s: float) -> float:
        """How long it has watched without a break."""
        return 0.0 if self._since_s is None else now_s - self._since_s

    def cautious_per_s(self, demand_per_s: float, current_per_s: float, window_s: float) -> float:
        """Give the demand that what is left must hold.

        Parameters
        ----------
        demand_per_s : float
            What to size for now.
        current_per_s, window_s : float
            The offered rate, and the time over which it is measured.
        """
        noise = 0.0
        if current_per_s > 0:
            noise = _NOISE_DEVIATIONS / math.sqrt(current_per_s * window_s)
        return max(self._demands[0][1], (1 + noise) * demand_per_s)

    def state_dict(self) -> dict[str, Any]:
        """Give what is remembered, as plain numbers and lists."""
        return {"demands": [list(entry) for entry in self._demands], "since_s": self._since_s}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "ScaleInGuard":
        """Make one that remembers what `state_dict` gave.

        Raises
        ------
        KeyError, TypeError, ValueError
            The state is not of this form.
        """
        guard = cls()
        guard._demands.extend((float(time_s), float(rate)) for time_s, rate in state["demands"])
        guard._since_s = None if state["since_s"] is None else float(state["since_s"])
        return guard
