"""When a worker that did not start is started again."""

#: After so many failed starts in a row, what waits for the stage is answered.
FAILED_STARTS = 3
_FIRST_DELAY_S, _MAX_DELAY_S = 0.1, 10.0


def delay_s(failed_starts: int) -> float:
    """Return how long to wait after so many failed starts in a row: twice as long each time."""
    return min(_MAX_DELAY_S, _FIRST_DELAY_S * 2.0**failed_starts)
