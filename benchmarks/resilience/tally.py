"""The outcomes of the requests of an experiment, as their clients count them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from loadtests.records import REFUSED
from policy.objective import ServiceLevelObjective

#: The SLA is judged over windows of this length.
WINDOW_S = 2.0


class Outcome(Enum):
    """How a request ended."""

    RIGHT = "right"
    """Answered with its own value."""
    WRONG = "wrong"
    """Answered with something else."""
    REFUSED = "refused"
    """Refused within the SLA (429, 503 or 504)."""
    FAILED = "failed"
    """Another status, or refused later than the SLA allows."""
    LOST = "lost"
    """No answer: refused connection, closed connection, or nothing within the client's time."""


@dataclass(frozen=True)
class Request:
    """One request: due and ended by ``time.monotonic``; the status is 0 without an answer."""

    due_s: float
    finished_s: float
    outcome: Outcome
    status: int = 0


@dataclass(frozen=True)
class Tally:
    """The counts of an experiment.

    `late` are right answers after the SLA's response time, `doubled` answers that nobody had asked
    for, `statuses` those of answers that were not right. `recovered_s` is from the fault until the
    SLA held, for good.
    """

    sent: int
    right: int
    late: int
    refused: int
    failed: int
    wrong: int
    lost: int
    doubled: int
    worst_ms: float
    recovered_s: float
    statuses: dict[str, int]


def outcome_of(status: int, right: bool, took_s: float, sla_s: float) -> Outcome:
    """Judge an answer by its status, its content and its time."""
    if status == 200:
        return Outcome.RIGHT if right else Outcome.WRONG
    in_time = status in REFUSED and took_s <= sla_s
    return Outcome.REFUSED if in_time else Outcome.FAILED


def recovered_s(
    requests: Iterable[Request], fault_s: float, sla_s: float, percentile: float
) -> float:
    """Return how long after a fault the SLA began to hold for good; 0 if it always held.

    The SLA holds in a window if `percentile` percent of the requests that were due in it were
    answered, right and in time. Windows follow each other from the fault on; the last one in which
    it did not hold ends the time.
    """
    kept: dict[int, list[bool]] = {}
    for one in requests:
        if one.due_s >= fault_s:
            in_time = one.outcome is Outcome.RIGHT and one.finished_s - one.due_s <= sla_s
            kept.setdefault(int((one.due_s - fault_s) / WINDOW_S), []).append(in_time)
    least_level = ServiceLevelObjective(1e3 * sla_s, percentile).least_level
    broken = [
        window for window, in_time in kept.items() if sum(in_time) / len(in_time) < least_level
    ]
    return (max(broken) + 1) * WINDOW_S if broken else 0.0


def tally(
    requests: Sequence[Request], doubled: int, fault_s: float, sla_s: float, percentile: float
) -> Tally:
    counts = dict.fromkeys(Outcome, 0)
    statuses: dict[str, int] = {}
    for one in requests:
        counts[one.outcome] += 1
        if one.status and one.outcome is not Outcome.RIGHT:
            statuses[str(one.status)] = statuses.get(str(one.status), 0) + 1
    took_s = [one.finished_s - one.due_s for one in requests]
    late = sum(
        time_s > sla_s and one.outcome is Outcome.RIGHT
        for time_s, one in zip(took_s, requests, strict=True)
    )
    return Tally(
        sent=len(requests),
        right=counts[Outcome.RIGHT],
        late=late,
        refused=counts[Outcome.REFUSED],
        failed=counts[Outcome.FAILED],
        wrong=counts[Outcome.WRONG],
        lost=counts[Outcome.LOST],
        doubled=doubled,
        worst_ms=1e3 * max(took_s, default=0.0),
        recovered_s=recovered_s(requests, fault_s, sla_s, percentile),
        statuses=statuses,
    )
