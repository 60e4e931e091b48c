"""Load for a long time: whether anything is lost, and whether the memory of a process grows."""

import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil

from benchmarks.resilience.run import Fault, Run

_EVERY_S = 5.0
#: Processes fill their caches at first.
_SETTLE_SHARE = 0.3


def growth_mib_per_h(times_s: Sequence[float], bytes_used: Sequence[float]) -> float:
    """Return the slope of the line of least squares through samples of memory, in MiB/h."""
    slope = float(np.polyfit(np.asarray(times_s) - times_s[0], bytes_used, 1)[0])
    return slope * 3600 / (1 << 20)


def name_of(process: psutil.Process) -> str:
    """Return the beginning of a process's command, without the path of its program."""
    program, *arguments = process.cmdline() or [process.name()]
    return " ".join([Path(program).name, *arguments])[:60]


def soak(minutes: float) -> Fault:
    """Return an experiment without harm that watches the memory of all processes."""

    def watch(run: Run) -> None:
        """Only send load, and watch the memory of every process."""
        run.begin()
        samples: dict[psutil.Process, list[tuple[float, float]]] = defaultdict(list)
        until_s = run.fault_s + 60 * minutes
        while time.monotonic() < until_s:
            for process in run.service.process.children(recursive=True):
                with suppress(psutil.Error):
                    used = process.memory_full_info().uss
                    samples[process].append((time.monotonic(), used))
            time.sleep(_EVERY_S)
        for process, taken in samples.items():
            settled = [
                one for one in taken if one[0] > until_s - 60 * minutes * (1 - _SETTLE_SHARE)
            ]
            with suppress(psutil.Error):
                if len(settled) > 2:
                    name = name_of(process)
                    slope = growth_mib_per_h(*zip(*settled, strict=True))
                    first, last = taken[0][1] / (1 << 20), taken[-1][1] / (1 << 20)
                    run.notes.append(f"{name}: {first:.1f} to {last:.1f} MiB, {slope:+.1f} MiB/h")

    return watch
