"""The highest of the values of the last minutes, as autoscalers that delay scaling in keep it."""

from collections import deque


class RecentMaximum:
    """The highest value of a sliding window of time.

    Parameters
    ----------
    length_s : float
        A value counts until it is older than this.
    """

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        # (time, value): those that no later one reaches.
        self._values: deque[tuple[float, int]] = deque()

    def add(self, now_s: float, value: int) -> int:
        """Add the value of now, and return the highest of the window."""
        while self._values and self._values[-1][1] <= value:
            self._values.pop()
        self._values.append((now_s, value))
        while now_s - self._values[0][0] > self._length_s:
            self._values.popleft()
        return self._values[0][1]
