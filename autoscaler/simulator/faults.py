"""Faults between a fleet and its autoscaler: lost reports, wrong clocks, an absent controller.

They concern what an autoscaler is told. What happens to the replicas themselves is in
`autoscaler.simulator.fleet.Failures`.
"""

import math
import zlib
from dataclasses import dataclass, replace

from autoscaler.reports import ReplicaReport
from policy.errors import InvalidInputError

#: Added to all times, so that no clock that is behind shows a time below 0.
EPOCH_S = 1e6


@dataclass(frozen=True)
class ReportFaults:
    """What goes wrong between the replicas and the controller.

    Attributes
    ----------
    lost : tuple of (begin_s, end_s, share)
        Spans in which this share of the replicas is not heard of. They serve all the same.
    skewed_share : float
        Share of the replicas whose node has a wrong clock.
    skew_s : float
        By how much that clock is ahead; negative if it is behind.
    interval_s : int
        Time between two reports of a replica. Replicas report at different times.
    controller_away : tuple of (begin_s, end_s)
        Spans without a controller. It comes back with the state that it saved up to
        `save_period_s` before.
    save_period_s : float
        How often the state is saved.

    Raises
    ------
    InvalidInputError
        A share is not in [0, 1], or a span is not valid.
    """

    lost: tuple[tuple[float, float, float], ...] = ()
    skewed_share: float = 0.0
    skew_s: float = 0.0
    interval_s: int = 1
    controller_away: tuple[tuple[float, float], ...] = ()
    save_period_s: float = 10.0

    def __post_init__(self) -> None:
        for share in (self.skewed_share, *(share for _, _, share in self.lost)):
            if not 0 <= share <= 1:
                raise InvalidInputError(f"faults: a share must be in [0, 1], not {share}")
        for begin_s, end_s in (
            *((begin_s, end_s) for begin_s, end_s, _ in self.lost),
            *self.controller_away,
        ):
            if not 0 <= begin_s <= end_s < math.inf:
                raise InvalidInputError(f"faults: {begin_s} to {end_s} is not a span of time")
        if self.interval_s < 1 or not math.isfinite(self.skew_s):
            raise InvalidInputError("faults: interval_s must be at least 1, and skew_s finite")

    def is_away(self, now_s: float) -> bool:
        """Return whether there is no controller."""
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
