"""Who else used the machine while something was measured."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil


@dataclass
class Others:
    """What processes that are not the benchmark's took of the machine.

    Attributes
    ----------
    cores : float
        Cores they kept busy on average; NaN while it is being measured.
    """

    cores: float = float("nan")


@contextmanager
def others() -> Iterator[Others]:
    """Measure it while the context lasts."""
    result = Others()
    started_s, ours_s, all_s = time.monotonic(), _ours_s(), _all_s()
    yield result
    spent_s = (_all_s() - all_s) - (_ours_s() - ours_s)
    result.cores = max(0.0, spent_s / (time.monotonic() - started_s))


def _all_s() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def _ours_s() -> float:
    """CPU time of this process, of the servers it started, and of clients that have ended."""
    own = psutil.Process()
    total = sum(own.cpu_times()[:4])
    for process in own.children(recursive=True):
        with suppress(psutil.Error):
            total += sum(process.cpu_times()[:2])
    return total
