"""When refused clients should come back: the ``Retry-After`` of refusals.

Refused clients that all return are a line in front of the service. While `a` requests per second
are offered and `c` of them answered, ``a - c`` join the line. If the service answers returns at a
rate of ``RETURN_SHARE * c``, the line is ``(a - c) / (RETURN_SHARE * c)`` seconds longer after each
second, less the second itself: Lindley's recursion for the wait in a queue. The rest of `c` is left
to clients that come for the first time, so what returns refuses nobody after the overload.

Each client returns at a random time of the second half of the wait. At a constant share of refusals
the returns then tend to ``2 ln 2 = 1.39`` times that rate at most, however great the overload.
"""

#: The share of the answers that returns may take.
RETURN_SHARE = 0.25
#: The shortest and the longest wait, in seconds. Hardly a client waits longer.
MIN_WAIT_S, MAX_WAIT_S = 4.0, 300.0


def next_wait_s(wait_s: float, answered: float, refused: float, elapsed_s: float) -> float:
    """Return the wait of who joins the line now, in seconds.

    `elapsed_s` ago it was `wait_s`. `answered` and `refused` are the requests since then, returns
    included.
    """
    if answered:
        wait_s += elapsed_s * (refused / (RETURN_SHARE * answered) - 1)
    return min(max(wait_s, MIN_WAIT_S), MAX_WAIT_S)


def earliest_return_s(wait_s: float) -> int:
    """Return after how many seconds clients may return at the earliest: half of their wait."""
    return round(wait_s / 2)
