"""The settings that the autoscaler works by; they travel with the replicas' reports as floats."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from autoscaler.forecasting.demand import POOLS
from autoscaler.sizing.try_delays import TryDelays
from policy.errors import InvalidInputError

#: What stands before the name of a setting among the floats of a report.
PREFIX = "settings_"
#: By what the rate to come is forecast. The order is what travels: append only.
FORECASTS = tuple(POOLS)

_BOUNDS = {
    "window_s": (1.0, 300.0),
    "risk": (1e-6, 0.5),
    "burst_factor": (1.0, 1e3),
    "backlog_drain_s": (1.0, 1e6),
}
# Settings that may be None travel as this.
_NONE = -1.0
_OPTIONAL = ("hold_s",)


@dataclass(frozen=True)
class AutoscalerSettings:
    """How replicas are counted.

    Attributes
    ----------
    risk : float
        The chance at which the highest demand until a replica ordered now serves may exceed what
        is sized for: the one knob of cost against compliance.
    window_s : float
        The offered rate that is shown is the mean over this long.
    forecast : str
        What the demand to come is forecast by; one of `FORECASTS`.
    hold_s : float or None
        Replicas go only after fewer would have done for this long. None: as long as a replica was
        measured to take to start, or two windows of the rate if that is shorter.
    idle_s : float
        Where no replica is allowed, the last one goes after this long without a request.
    burst_factor : float
        A sudden rise of the rate by this factor must be absorbed without new replicas.
    backlog_drain_s : float
        Time in which what has piled up in the replicas' queues is to be worked off.
    request_delay_ms, reply_delay_ms, retry_delay_ms : float
        What a try costs between balancer and replica; see `autoscaler.sizing.estimators.TryDelays`.
    retries : int
        Retries after which the balancer gives up.

    Raises
    ------
    InvalidInputError
        A value is out of its range.
    """

    risk: float = 0.02
    window_s: float = 10.0
    forecast: str = "auto"
    hold_s: float | None = None
    idle_s: float = 300.0
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
            if value is None and name in _OPTIONAL:
                continue
            if not _is_number(value) or not least <= value <= most:
                raise InvalidInputError(
                    f"{name}: must be a number from {least:g} to {most:g}, not {value!r}"
                )
        if not _is_number(self.retries) or self.retries < 0 or self.retries != int(self.retries):
            raise InvalidInputError(
                f"retries: must be a whole number of at least 0, not {self.retries!r}"
            )
        if self.forecast not in FORECASTS:
            raise InvalidInputError(
                f"forecast: must be one of {', '.join(FORECASTS)}, not {self.forecast!r}"
            )

    @property
    def delays(self) -> TryDelays:
        """The delays of a try, and how many there are."""
        return TryDelays(
            self.request_delay_ms, self.reply_delay_ms, self.retry_delay_ms, self.retries
        )

    def to_floats(self) -> dict[str, float]:
        """Give the settings as floats, each name prefixed with ``settings_``."""
        values = {}
        for name in (*_FLOAT_SETTINGS, "retries"):
            value = getattr(self, name)
            values[PREFIX + name] = _NONE if value is None else float(value)
        values[PREFIX + "forecast"] = float(FORECASTS.index(self.forecast))
        return values

    @classmethod
    def from_floats(cls, values: Mapping[str, float]) -> "AutoscalerSettings":
        """Read what `to_floats` gave; what is not there keeps its default.

        Raises
        ------
        InvalidInputError
            A value is out of its range.
        """
        given: dict[str, Any] = {
            name: float(values[PREFIX + name])
            for name in _FLOAT_SETTINGS
            if PREFIX + name in values
        }
        for name in _OPTIONAL:
            if given.get(name) == _NONE:
                given[name] = None
        forecast, retries = cls.forecast, cls.retries
        if PREFIX + "forecast" in values:
            number = values[PREFIX + "forecast"]
            if number not in range(len(FORECASTS)):
                raise InvalidInputError(f"forecast: there is none of number {number}")
            forecast = FORECASTS[int(number)]
        if PREFIX + "retries" in values:
            number = values[PREFIX + "retries"]
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
