"""The autoscaler's settings, and their form as floats, in which replica reports carry them."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from policy.errors import InvalidInputError
from policy.try_delays import TryDelays

#: Prefix of a setting's name among the floats of a report.
PREFIX = "settings_"
#: The value of `standbys` with which the autoscaler decides on their number.
AUTO = "auto"
# How None, or `AUTO`, is encoded as a float.
_NONE = -1.0


@dataclass(frozen=True)
class AutoscalerSettings:
    """The settings of the autoscaler; `deployments.config.user_config` has their ranges.

    At a `risk` of None, the share of the one-minute windows that a forecast may miss is adapted
    until `compliant_minutes` percent of the minutes comply. The offered rate is averaged over
    `window_s`. Fewer replicas must have been enough for `scale_down_delay_s` before some go; None:
    as long as a replica takes to start, but at most two windows. If no replica is required at all,
    the last one goes after `scale_to_zero_delay_s` without a request. A sudden rise by
    `burst_factor` is absorbed without new replicas. Of `standbys`, `AUTO` keeps as many as pay.
    """

    compliant_minutes: float = 99.0
    risk: float | None = None
    window_s: float = 10.0
    scale_down_delay_s: float | None = None
    scale_to_zero_delay_s: float = 300.0
    burst_factor: float = 1.0
    retries: int = 5
    standbys: int | str = 0

    @property
    def compliant_share(self) -> float:
        return self.compliant_minutes / 100

    @cached_property
    def delays(self) -> TryDelays:
        """The network delays of a try, and the limit of retries."""
        return TryDelays(retries=self.retries)

    def to_floats(self) -> dict[str, float]:
        """Return the settings as floats, each name prefixed with ``settings_``."""
        values = {setting.name: getattr(self, setting.name) for setting in fields(self)}
        return {
            PREFIX + name: _NONE if value in (None, AUTO) else float(value)
            for name, value in values.items()
        }

    @classmethod
    def from_floats(cls, values: Mapping[str, float]) -> "AutoscalerSettings":
        """Read what `to_floats` returned; missing settings keep their default."""
        given: dict[str, Any] = {
            setting.name: _decoded(setting.name, values[PREFIX + setting.name])
            for setting in fields(cls)
            if PREFIX + setting.name in values
        }
        return cls(**given)


def _decoded(name: str, value: float) -> float | str | None:
    optional = {"risk": None, "scale_down_delay_s": None, "standbys": AUTO}
    if value == _NONE and name in optional:
        return optional[name]
    whole = name in ("retries", "standbys")
    if not 0 <= value <= 1e6 or (whole and value != int(value)):
        raise InvalidInputError(f"{name}: cannot be {value} in a report")
    return int(value) if whole else value
