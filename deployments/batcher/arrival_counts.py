"""Arrivals counted in successive equal windows."""

import math


class ArrivalCounts:
    """Rows that arrived in each window of a fixed length, O(1) per arrival.

    Windows are aligned to the clock. The window of the first arrival is not reported, because
    counting may have begun within it.

    Parameters
    ----------
    window_s : float
        Length of a window.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._window: int | None = None
        self._rows = 0
        self._whole = False
        self._ended: list[int] = []

    def count(self, now_s: float, rows: int = 1) -> None:
        """Count an arrival of `rows` rows."""
        self._advance(now_s)
        self._rows += rows

    def take(self, now_s: float) -> list[int]:
        """Return the counts of the windows that ended since the last call, the oldest first."""
        if self._window is not None:
            self._advance(now_s)
        ended, self._ended = self._ended, []
        return ended

    def _advance(self, now_s: float) -> None:
        window = math.floor(now_s / self._window_s)
        if self._window is None:
            self._window = window
        # Requests are timestamped before they are parsed, so they may be slightly out of order.
        elif window > self._window:
            if self._whole:
                self._ended.append(self._rows)
            self._ended.extend([0] * (window - self._window - 1))
            self._window, self._rows, self._whole = window, 0, True
