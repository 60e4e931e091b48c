"""The growth of a service's counters over the last minute."""

from collections import deque
from collections.abc import Mapping

WINDOW_S = 60.0


class LastMinute:
    """Samples of counters, of which those of the last minute are kept; all were 0 at `now_s`."""

    def __init__(self, now_s: float) -> None:
        self._samples: deque[tuple[float, Mapping[str, int]]] = deque([(now_s, {})])

    def add(self, now_s: float, counts: Mapping[str, int]) -> None:
        self._samples.append((now_s, counts))
        while self._samples[0][0] < now_s - WINDOW_S:
            self._samples.popleft()

    def growth(self) -> dict[str, float]:
        """Return by how much each counter has grown, and in how many ``seconds``."""
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        grown = {name: count - first.get(name, 0) for name, count in last.items()}
        return {"seconds": last_s - first_s, **grown}
