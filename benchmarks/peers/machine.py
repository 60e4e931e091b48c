"""How much of the machine other processes used during a measurement."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil


@dataclass
class Others:
    """CPU use of processes that do not belong to the benchmark.

    Attributes
    ----------
    cores : float
        Cores they kept busy on average; NaN until the measurement ends.
    """

    cores: float = float("nan")


@contextmanager
def others() -> Iterator[Others]:
    """Measure the CPU use of other processes while the context lasts."""
    result = Others()
    started_s, own_s, total_s = time.monotonic(), _own_cpu_s(), _total_cpu_s()
    yield result
    spent_s = (_total_cpu_s() - total_s) - (_own_cpu_s() - own_s)
    result.cores = max(0.0, spent_s / (time.monotonic() - started_s))


def _total_cpu_s() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def _own_cpu_s() -> float:
    """Return the CPU time of this process, the servers it started, and clients that have ended."""
    own = psutil.Process()
    total = sum(own.cpu_times()[:4])
    for process in own.children(recursive=True):
        with suppress(psutil.Error):
            total += sum(process.cpu_times()[:2])
    return total
