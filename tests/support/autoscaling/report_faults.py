"""Faults between a fleet and its autoscaler: lost reports, wrong clocks, an absent controller.

They concern what an autoscaler sees. What happens to the replicas themselves is in
`autoscaler.simulator.fleet.Failures`.
"""

import math
import zlib
from dataclasses import dataclass, replace
from typing import Any

from autoscaler.controller import Autoscaler
from autoscaler.reports import ReplicaReport
from autoscaler.simulator.autoscalers.sojourn import SojournAutoscaler
from autoscaler.simulator.scaling import FleetView

#: Added to all times, so that no clock that is behind shows a time below 0.
EPOCH_S = 1e6


@dataclass(frozen=True)
class ReportFaults:
    #: Begin and end in s, and the share of the replicas that is not heard of. They serve.
    lost: tuple[tuple[float, float, float], ...] = ()
    #: Share of the replicas whose clock is so far ahead.
    skewed_share: float = 0.0
    skew_s: float = 0.0
    #: Between two reports of a replica.
    interval_s: int = 1
    #: Spans without a controller, which comes back with the state that it saved last.
    controller_away: tuple[tuple[float, float], ...] = ()
    save_period_s: float = 10.0

    def is_away(self, now_s: float) -> bool:
        return any(begin_s <= now_s < end_s for begin_s, end_s in self.controller_away)

    def sent(self, now_s: float, reports: list[ReplicaReport]) -> list[ReplicaReport]:
        """Return the reports that get through, with `EPOCH_S` plus what their clock shows."""
        silent = max((share for b, e, share in self.lost if b <= now_s < e), default=0.0)
        through = []
        for report in reports:
            name = report.replica_id
            if _share_of(name, "silent") < silent:
                continue
            if (round(now_s) + math.floor(_share_of(name, "phase") * self.interval_s)) % (
                self.interval_s
            ):
                continue
            skew_s = self.skew_s if _share_of(name, "skew") < self.skewed_share else 0.0
            through.append(replace(report, time_s=EPOCH_S + report.time_s + skew_s))
        return through


def _share_of(name: str, salt: str) -> float:
    """Return a fixed pseudo-random number in [0, 1) for a replica."""
    return zlib.crc32(f"{salt} {name}".encode()) / 2**32


class FaultySojourn(SojournAutoscaler):
    def __init__(self, faults: ReportFaults) -> None:
        super().__init__()
        self._faults = faults
        self._saved: tuple[float, dict[str, Any]] = (-math.inf, {})
        self._is_away = False

    def replicas(self, view: FleetView) -> int:
        reports = self._faults.sent(view.now_s, view.reports())
        if self._faults.is_away(view.now_s):
            self._is_away = True
            return view.ordered
        self._save_or_restore(view.now_s)
        shifted = replace(view, now_s=view.now_s + EPOCH_S, reports=lambda: reports)
        return super().replicas(shifted)

    def _save_or_restore(self, now_s: float) -> None:
        if self._is_away:
            self._is_away = False
            self.autoscaler = Autoscaler()
            if self._saved[1]:
                self.autoscaler.load_state(self._saved[1])
            self._delayed.clear()
        elif now_s - self._saved[0] >= self._faults.save_period_s:
            self._saved = now_s, self.autoscaler.snapshot()()
