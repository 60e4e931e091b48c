"""The input of a decision of the autoscaler, the decision with its reason, and their log."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from policy.errors import InvalidInputError


@dataclass(frozen=True)
class FleetState:
    """The replicas of a deployment, and the bounds on their number, standbys included.

    `current_replicas` and `current_standbys` are what was ordered so far, started or not.
    `ready_replicas` serve, whether they report or not. `waiting` requests wait outside for a first
    replica. If `min_replicas` is 0, the last replica goes after no request has
    come for `AutoscalerSettings.scale_to_zero_delay_s`.
    """

    current_replicas: int
    min_replicas: int
    max_replicas: int
    ready_replicas: int
    waiting: float = 0.0
    current_standbys: int = 0
    ready_standbys: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.min_replicas <= self.max_replicas:
            raise InvalidInputError(
                f"bounds: min_replicas must be at least 0 and at most max_replicas, not "
                f"{self.min_replicas} to {self.max_replicas}"
            )

    @property
    def least(self) -> int:
        """The lower bound of a fleet that serves."""
        return max(1, self.min_replicas)

    @property
    def most(self) -> int:
        """The upper bound of a fleet that serves."""
        return max(1, self.max_replicas)

    @property
    def total_ordered(self) -> int:
        return self.current_replicas + self.current_standbys

    @property
    def total_ready(self) -> int:
        return self.ready_replicas + self.ready_standbys


@dataclass(frozen=True)
class Decision:
    """The number of replicas that there should be, and why. What is unknown is None.

    `replicas` is what `required_replicas`, which the demand requires by RAND, leaves after the
    scale-down delay; `standbys` are besides. `required_without_retries` would be required if no
    refusal were retried, as if each replica stood alone. Rates are requests per second: offered now
    (`arrival_rate_per_s`), expected until a replica ordered now has started (`forecast_per_s`), and
    sized for (`demand_per_s`): the forecast with its `margin`, by `method` at `risk`, and with the
    burst factor, or what is measured now to be needed (`autoscaler.observe.overload`).
    `sla_rate_per_s` is what one replica takes within the SLA, with the `correction` learned from
    measured lateness, and `model_error` the measured minus the predicted fraction of late requests.

    `start_times_s` are the median starts by the place of the weights (`WEIGHTS_TIERS`).
    `predicted_service_level` is the fraction of requests in time at `demand_per_s` without
    `stuck_replicas`, which have not started for much longer than a start takes. `silent_replicas`
    serve but do not report. `try_delays` are the `policy.try_delays.TryDelays` that the median
    replica measures. `bottleneck` limits most replicas (`autoscaler.reports.BOTTLENECKS`).
    """

    replicas: int
    reason: str
    arrival_rate_per_s: float | None = None
    forecast_per_s: float | None = None
    required_replicas: int | None = None
    required_without_retries: int | None = None
    predicted_service_level: float | None = None
    backlog: float = 0.0
    horizon_s: float = 0.0
    start_times_s: Mapping[str, float] | None = None
    demand_per_s: float | None = None
    method: str = ""
    margin: float = 1.0
    risk: float | None = None
    sla_rate_per_s: float | None = None
    correction: float = 1.0
    model_error: float | None = None
    scale_down_delay_s: float = 0.0
    silent_replicas: int = 0
    report_interval_s: float | None = None
    stuck_replicas: int = 0
    standbys: int = 0
    bottleneck: str | None = None
    try_delays: Mapping[str, float | None] | None = None


#: The number of entries that are kept.
DECISIONS_KEPT = 100
#: A decision for the same number of replicas is recorded again after this long.
RECORD_AGAIN_AFTER_S = 60.0

Entry = Mapping[str, Any]


class DecisionLog:
    """The newest decision, and the latest recorded ones.

    A decision is recorded if its number of replicas or of standbys differs from that of the last
    recorded one, or if that one is a minute old. It goes on from the complete entries of an earlier
    log, oldest first.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        usable = (entry for entry in entries if {"time_s", "replicas"} <= entry.keys())
        self._recorded: deque[Entry] = deque(usable, maxlen=DECISIONS_KEPT)
        #: The decision in force, recorded or not; None before the first.
        self.newest: Entry | None = self._recorded[-1] if self._recorded else None

    @property
    def recorded(self) -> list[Entry]:
        """The recorded decisions, oldest first, as plain dicts ready for JSON."""
        return list(self._recorded)

    def add(self, time_s: float, target_replicas: int, decision: Decision) -> bool:
        """Add a decision made with `target_replicas` ordered; return whether it was recorded."""
        # Its fields are plain values, so `asdict`, which copies deeply, would only take longer.
        entry = {"time_s": time_s, "target_replicas": target_replicas, **vars(decision)}
        self.newest = entry
        if self._recorded:
            last = self._recorded[-1]
            # If the clock was set back, the last one counts as old, too.
            is_recent = 0 <= time_s - last["time_s"] < RECORD_AGAIN_AFTER_S
            is_repeated = (
                last["replicas"] == decision.replicas
                and last.get("standbys", 0) == decision.standbys
            )
            if is_recent and is_repeated:
                return False
        self._recorded.append(entry)
        return True
