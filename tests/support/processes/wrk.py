"""A closed loop of clients by wrk, which costs less CPU than a client in Python."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

#: Prints a line for each response time that occurred, in µs, and how often.
_SCRIPT = """
wrk.method = "POST"
wrk.body = [==[{body}]==]
wrk.headers["Content-Type"] = "application/json"
done = function(summary, latency, requests)
  print("summary", summary.duration, summary.requests, summary.errors.timeout)
  for i = 1, #latency do print("time", latency(i)) end
end
"""


@dataclass(frozen=True)
class WrkRun:
    """What wrk's clients saw.

    Attributes
    ----------
    times_s, counts : ndarray of shape (times,)
        Response times of all answers, whatever their status, ascending; and how often each was.
    timeouts : int
        Requests without an answer within wrk's limit.
    """

    times_s: NDArray[np.float64]
    counts: NDArray[np.int64]
    timeouts: int

    def share_above(self, time_s: float) -> float:
        """Return the fraction of the answers that took longer."""
        return float(self.counts[self.times_s > time_s].sum() / self.counts.sum())

    def percentile_s(self, percentile: float) -> float:
        """Return the response time that a percentage of the answers stays within."""
        reached = np.searchsorted(self.counts.cumsum(), percentile / 100 * self.counts.sum())
        return float(self.times_s[reached])


def uncorrected(counts: dict[int, int], expected_us: int) -> dict[int, int]:
    """Return how often each response time occurred, by what wrk says.

    A closed loop sends less while it waits, and wrk makes up for that: for each time t it adds one
    of t - e, t - 2e, … above e, where e is the mean time between a connection's requests. That
    tells what clients would see that send at fixed times. These clients wait.

    Parameters
    ----------
    counts : dict of int to int
        By the response time in µs.
    expected_us : int
        The e above.
    """
    left = dict(counts)
    for time_us in sorted(counts, reverse=True):
        for added_us in range(time_us - expected_us, expected_us, -expected_us):
            if time_us >= 2 * expected_us and left[time_us]:
                left[added_us] -= left[time_us]
    return left


def wrk(url: str, body: str, connections: int, duration_s: int, folder: Path) -> WrkRun:
    """Keep a request on each connection, from one thread.

    Raises
    ------
    subprocess.CalledProcessError
        wrk failed.
    """
    script = folder / "wrk.lua"
    script.write_text(_SCRIPT.replace("{body}", body))
    command = ["wrk", "-t1", f"-c{connections}", f"-d{duration_s}s", "--timeout", "10s"]
    output = subprocess.run(
        [*command, "-s", str(script), url], check=True, capture_output=True, text=True
    ).stdout
    lines = [line.split() for line in output.splitlines()]
    (summary,) = ([int(word) for word in words[1:]] for words in lines if words[:1] == ["summary"])
    duration_us, requests, timeouts = summary
    rounds = requests // connections
    counts = {int(words[1]): int(words[2]) for words in lines if words[:1] == ["time"]}
    if rounds:
        counts = uncorrected(counts, duration_us // rounds)
    times_us = sorted(counts)
    return WrkRun(
        1e-6 * np.array(times_us, np.float64),
        np.array([counts[time_us] for time_us in times_us]),
        timeouts,
    )
