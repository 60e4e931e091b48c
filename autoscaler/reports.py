"""What the autoscaler is told: the settings it works by, and the reports of the replicas.

Both travel as flat tables of floats, which is all that Ray carries from a replica to its policy.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from autoscaler.forecast import FORECASTERS
from autoscaler.sizing import TryDelays
from policy.objective import ServiceLevelObjective
from sojourn.errors import InvalidInputError

_PREFIX = "settings_"
_BOUNDS = {
    "window_s": (1.0, 300.0),
    "burst_factor": (1.0, 1e3),
    "backlog_drain_s": (1.0, 1e6),
}


@dataclass(frozen=True)
class AutoscalerSettings:
    """How replicas are counted.

    Attributes
    ----------
    window_s : float
        The arrival rate is the mean over this long. Shorter reacts sooner and sees more noise.
    forecast : str
        What the rate is expected to be once a replica ordered now has started; a key of
        `autoscaler.forecast.FORECASTERS`.
    hold_s : float
        Replicas go only after fewer would have met the SLA for this long.
    burst_factor : float
        A sudden rise of the rate by this factor must be absorbed without new replicas.
    backlog_drain_s : float
        Time in which what has piled up in the replicas' queues is to be worked off.
    request_delay_ms, reply_delay_ms, retry_delay_ms : float
        What a try costs between balancer and replica; see `autoscaler.sizing.TryDelays`.
    retries : int
        Retries after which the balancer gives up.

    Raises
    ------
    InvalidInputError
        A value is out of its range.
    """

    window_s: float = 10.0
    forecast: str = "last"
    hold_s: float = 120.0
    burst_factor: float = 1.0
    backlog_drain_s: float = 10.0
    request_delay_ms: float = 0.25
    reply_delay_ms: float = 0.25
    retry_delay_ms: float = 0.0
    retries: int = 5

    def __post_init__(self) -> None:
        for name in _FLOAT_SETTINGS:
            least, most = _BOUNDS.get(name, (0.0, 1e6))
            value = getattr(self, name)
            if not _is_number(value) or not least <= value <= most:
                raise InvalidInputError(
                    f"{name}: must be a number from {least:g} to {most:g}, not {value!r}"
                )
        if not _is_number(self.retries) or self.retries < 0 or self.retries != int(self.retries):
            raise InvalidInputError(
                f"retries: must be a whole number of at least 0, not {self.retries!r}"
            )
        if self.forecast not in FORECASTERS:
            raise InvalidInputError(
                f"forecast: must be one of {', '.join(FORECASTERS)}, not {self.forecast!r}"
            )

    @property
    def delays(self) -> TryDelays:
        """The delays of a try, and how many there are."""
        return TryDelays(
            self.request_delay_ms, self.reply_delay_ms, self.retry_delay_ms, self.retries
        )

    def to_floats(self) -> dict[str, float]:
        """Give the settings as floats, each name prefixed with ``settings_``."""
        values = {name: float(getattr(self, name)) for name in (*_FLOAT_SETTINGS, "retries")}
        values["forecast"] = float(list(FORECASTERS).index(self.forecast))
        return {_PREFIX + name: value for name, value in values.items()}

    @classmethod
    def from_floats(cls, values: Mapping[str, float]) -> "AutoscalerSettings":
        """Read what `to_floats` gave; what is not there keeps its default.

        Raises
        ------
        InvalidInputError
            A value is out of its range.
        """
        given = {
            name: float(values[_PREFIX + name])
            for name in _FLOAT_SETTINGS
            if _PREFIX + name in values
        }
        forecast, retries = cls.forecast, cls.retries
        if _PREFIX + "forecast" in values:
            number, names = values[_PREFIX + "forecast"], list(FORECASTERS)
            if number not in range(len(names)):
                raise InvalidInputError(f"forecast: there is none of number {number}")
            forecast = names[int(number)]
        if _PREFIX + "retries" in values:
            number = values[_PREFIX + "retries"]
            if not (math.isfinite(number) and number == int(number)):
                raise InvalidInputError(f"retries: must be a whole number, not {number}")
            retries = int(number)
        return cls(forecast=forecast, retries=retries, **given)


_FLOAT_SETTINGS = tuple(
    setting.name
    for setting in fields(AutoscalerSettings)
    if setting.name not in ("forecast", "retries")
)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class ReplicaReport:
    """What one replica said of itself at one time.

    Attributes
    ----------
    replica_id : str
        Its name, for as long as it lives.
    time_s : float
        When this was recorded, on the clock of `Autoscaler.decide`.
    offered_total, refused_total, completed_total : float
        Rows since the replica started: of all tries that reached it, of those it refused, and of
        those it answered.
    queue_length : float
        Rows that wait now.
    full_batch_size, full_batch_ms : float
        Its largest batch, and the time that one takes.
    sla_response_time_ms, sla_percentile : float
        The SLA now in force there.
    start_time_s : float
        Time from its creation until it could serve; 0 if not known.
    settings : AutoscalerSettings or None
        The settings now in force there; None leaves those of the autoscaler.

    Raises
    ------
    InvalidInputError
        A value is negative or not finite.
    """

    replica_id: str
    time_s: float
    offered_total: float
    refused_total: float
    completed_total: float
    queue_length: float
    full_batch_size: float
    full_batch_ms: float
    sla_response_time_ms: float
    sla_percentile: float
    start_time_s: float = 0.0
    settings: AutoscalerSettings | None = None

    def __post_init__(self) -> None:
        for name in ("time_s", *_REPORT_FLOATS):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise InvalidInputError(f"report of {self.replica_id}: {name} is {value}")
        for name in ("full_batch_size", "full_batch_ms"):
            if getattr(self, name) == 0:
                raise InvalidInputError(f"report of {self.replica_id}: {name} is 0")
        try:
            ServiceLevelObjective(self.sla_response_time_ms, self.sla_percentile)
        except InvalidInputError as error:
            raise InvalidInputError(f"report of {self.replica_id}: {error}") from error

    @property
    def objective(self) -> ServiceLevelObjective:
        """The SLA now in force there."""
        return ServiceLevelObjective(self.sla_response_time_ms, self.sla_percentile)

    @classmethod
    def from_floats(
        cls, replica_id: str, time_s: float, values: Mapping[str, float]
    ) -> "ReplicaReport":
        """Read a report, and the settings in it if there are any, from a flat table of floats.

        Raises
        ------
        InvalidInputError
            A value is missing or out of its range.
        """
        given = {name: float(values[name]) for name in _REPORT_FLOATS if name in values}
        missing = [name for name in _REPORT_FLOATS if name not in given and name != "start_time_s"]
        if missing:
            raise InvalidInputError(f"report of {replica_id}: {', '.join(missing)} missing")
        has_settings = any(name.startswith(_PREFIX) for name in values)
        settings = AutoscalerSettings.from_floats(values) if has_settings else None
        return cls(replica_id, time_s, settings=settings, **given)


_REPORT_FLOATS = tuple(
    value.name
    for value in fields(ReplicaReport)
    if value.name not in ("replica_id", "time_s", "settings")
)
