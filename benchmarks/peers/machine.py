"""What the machine's processors did during a measurement: for the server, and for others."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import psutil


@dataclass
class MachineUse:
    """CPU use during a measurement; set when it ends.

    Attributes
    ----------
    others_cores : float
        Cores that processes which do not belong to the benchmark kept busy on average.
    server_cpu_s : mapping of str to float
        CPU time of the server by part: ``replica`` and ``haproxy`` where it has these, and ``rest``
        for its other processes.
    """

    others_cores: float = float("nan")
    server_cpu_s: dict[str, float] = field(default_factory=dict)

    def server_cpu_us(self, requests: float) -> dict[str, float]:
        """Return the server's CPU time per request by part, in microseconds."""
        if not requests:
            return {}
        return {part: 1e6 * cpu_s / requests for part, cpu_s in self.server_cpu_s.items()}


@contextmanager
def machine_use(server_pid: int | None = None) -> Iterator[MachineUse]:
    """Measure CPU use while the context lasts.

    Parameters
    ----------
    server_pid : int, optional
        The server's first process; all others of the server descend from it.
    """
    result = MachineUse()
    started_s, own_s, total_s = time.monotonic(), _own_cpu_s(), _total_cpu_s()
    before = _cpu_s_by_part(server_pid)
    yield result
    after = _cpu_s_by_part(server_pid)
    spent_s = (_total_cpu_s() - total_s) - (_own_cpu_s() - own_s)
    result.others_cores = max(0.0, spent_s / (time.monotonic() - started_s))
    result.server_cpu_s = {part: cpu_s - before[part] for part, cpu_s in after.items()}


def _cpu_s_by_part(server_pid: int | None) -> defaultdict[str, float]:
    cpu_s: defaultdict[str, float] = defaultdict(float)
    if server_pid is None:
        return cpu_s
    with suppress(psutil.Error):
        first = psutil.Process(server_pid)
        for process in (first, *first.children(recursive=True)):
            with suppress(psutil.Error):
                cpu_s[_part_of(process)] += sum(process.cpu_times()[:2])
    return cpu_s


def _part_of(process: psutil.Process) -> str:
    """Return the part of a server that a process is; Ray names a replica's process."""
    if "haproxy" in process.name():
        return "haproxy"
    return "replica" if "ServeReplica" in " ".join(process.cmdline()) else "rest"


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
