"""The autoscaler's settings, and their form as floats, in which replica reports carry them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from autoscaler.forecasting.demand import POOLS
from policy.errors import InvalidInputError
from policy.try_delays import TryDelays

#: Prefix of a setting's name among the floats of a report.
PREFIX = "settings_"
#: The values of the setting `forecast`. A report carries the index: append only.
FORECASTS = tuple(POOLS)

_BOUNDS = {
    "window_s": (1.0, 300.0),
    "windows": (0.5, 0.9999),
    "risk": (1e-6, 0.5),
    "burst_factor": (1.0, 1e3),
    "backlog_drain_s": (1.0, 1e6),
    "standby_price": (1e-3, 1.0),
}
# How None is encoded as a float.
_NONE = -1.0
_OPTIONAL = ("risk", "hold_s")
#: The value of `standbys` with which the autoscaler decides on their number.
AUTO = "auto"
# How it is encoded as a float.
_AUTO = -1.0


@dataclass(frozen=True)
class AutoscalerSettings:
    """The settings of the autoscaler.

    Attributes
    ----------
    windows : float
        Share of the one-minute windows that should comply with the SLA. It trades cost against
        compliance.
    risk : float or None
        Share of the time in which the load may exceed the forecast demand, in its back-test. None:
        adapted while running until `windows` is met.
    window_s : float
        Length of the window over which the offered rate is averaged, in s.
    forecast : str
        How the demand is forecast: ``auto`` compares all forecasts, a name restricts it to a kind.
    hold_s : float or None
        How long fewer replicas must have been enough before some go, in s. None: as long as a
        replica takes to start, but at most two windows.
    idle_s : float
        If no replica is required at all, the last one goes after this long without a request, in s.
    burst_factor : float
        Factor by which the rate may suddenly rise and still be absorbed without new replicas.
    backlog_drain_s : float
        Time in which a backlog in the replicas' queues is to be worked off, in s.
    request_delay_ms, reply_delay_ms, retry_delay_ms : float
        Network delays of a try: to the replica, of its refusal back, and before the next try.
    retries : int
        Retries after which the balancer gives up.
    standbys : int or str
        Standbys to keep beside the replicas that serve, or ``auto``: as many as pay
        (`autoscaler.standbys`).
    standby_price : float
        Price of a standby as a share of a replica's, from 0.001 to 1.

    Raises
    ------
    InvalidInputError
        A value is out of range.
    """

    windows: float = 0.99
    risk: float | None = None
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
    standbys: int | str = 0
    standby_price: float = 0.3

    def __post_init__(self) -> None:
        for name in _FLOAT_SETTINGS:
            low, high = _BOUNDS.get(name, (0.0, 1e6))
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            if not _is_number(value) or not low <= value <= high:
                raise InvalidInputError(
                    f"{name}: must be a number from {low:g} to {high:g}, not {value!r}"
                )
        if not _is_number(self.retries) or self.retries < 0 or self.retries != int(self.retries):
            raise InvalidInputError(
                f"retries: must be a whole number of at least 0, not {self.retries!r}"
            )
        if self.standbys != AUTO and not (type(self.standbys) is int and self.standbys >= 0):
            raise InvalidInputError(
                f"standbys: must be {AUTO} or a whole number of at least 0, not {self.standbys!r}"
            )
        if self.forecast not in FORECASTS:
            raise InvalidInputError(
                f"forecast: must be one of {', '.join(FORECASTS)}, not {self.forecast!r}"
            )

    @cached_property
    def delays(self) -> TryDelays:
        """The network delays of a try, and the limit of retries."""
        return TryDelays(
            self.request_delay_ms, self.reply_delay_ms, self.retry_delay_ms, self.retries
        )

    def to_floats(self) -> dict[str, float]:
        """Return the settings as floats, each name prefixed with ``settings_``."""
        values = {}
        for name in (*_FLOAT_SETTINGS, "retries"):
            value = getattr(self, name)
            values[PREFIX + name] = _NONE if value is None else float(value)
        values[PREFIX + "forecast"] = float(FORECASTS.index(self.forecast))
        values[PREFIX + "standbys"] = _AUTO if self.standbys == AUTO else float(self.standbys)
        return values

    @classmethod
    def from_floats(cls, values: Mapping[str, float]) -> "AutoscalerSettings":
        """Read what `to_floats` returned; missing settings keep their default.

        Raises
        ------
        InvalidInputError
            A value is out of range.
        """
        given: dict[str, Any] = {
            name: float(values[PREFIX + name])
            for name in _FLOAT_SETTINGS
            if PREFIX + name in values
        }
        for name in _OPTIONAL:
            if given.get(name) == _NONE:
                given[name] = None
        forecast = cls.forecast
        if PREFIX + "forecast" in values:
            index = values[PREFIX + "forecast"]
            if index not in range(len(FORECASTS)):
                raise InvalidInputError(
                    f"forecast: must be an index from 0 to {len(FORECASTS) - 1}, not {index}"
                )
            forecast = FORECASTS[int(index)]
        retries = _whole_number(values, "retries", cls.retries)
        standbys: int | str = _whole_number(values, "standbys", 0)
        if standbys == _AUTO:
            standbys = AUTO
        return cls(forecast=forecast, retries=retries, standbys=standbys, **given)


_FLOAT_SETTINGS = tuple(
    setting.name
    for setting in fields(AutoscalerSettings)
    if setting.name not in ("forecast", "retries", "standbys")
)


def _whole_number(values: Mapping[str, float], name: str, default: int) -> int:
    number = values.get(PREFIX + name, default)
    if not (math.isfinite(number) and number == int(number)):
        raise InvalidInputError(f"{name}: must be a whole number, not {number}")
    return int(number)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
