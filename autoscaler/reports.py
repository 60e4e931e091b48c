"""The replicas' reports to the autoscaler.

A report travels as a flat dict of floats, which is all that Ray carries from a replica to its
autoscaling policy. The settings in force travel with it.
"""

import math
import zlib
from array import array
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import lru_cache
from operator import attrgetter
from typing import Any

from autoscaler.settings import AutoscalerSettings
from policy.errors import InvalidInputError
from policy.load_lateness import LoadLatenessCurve
from policy.objective import ServiceLevelObjective
from policy.tables.power import PowerTable
from policy.try_delays import TryDelays

#: Bottlenecks of a replica, in the order of their codes in a report, from 1: the device,
#: its event loop, or neither, because other processes use the cores that the event loop needs.
BOTTLENECKS = ("device", "event_loop", "neither")

#: Places where a start may find the weights, fastest first, in the order of their codes from 1:
#: the tiers of the model store, and a file outside of it.
WEIGHTS_TIERS = ("device", "host", "disk", "remote", "file")

#: Prefix of the late shares of a curve among the floats of a report.
_LATE_SHARE_PREFIX = "late_share_"
#: Prefix of the numbers of a `PowerTable` among the floats of a report.
_POWER_PREFIX = "power_"
#: The same of its overload levels.
_OVERLOAD_LEVEL_PREFIX = "overload_level_"


@dataclass(frozen=True)
class ReplicaReport:
    """The report of one replica at one time; `InvalidInputError` if a value is impossible.

    Totals count rows since the replica started: `offered_total` every try, `refused_total` the
    refused tries, `refused_by_balancer_total` those among them that HAProxy refused at its
    concurrency limit, `late_total` the answers later than the SLA's response time. `counted_s` is
    the monotonic time since counting began.

    `sla_rate_per_s`, `late_shares` and `overload_levels` are those of its
    `policy.load_lateness.LoadLatenessCurve`: 0 and empty while that is unknown; a rate of 0 with
    late shares of 1 says that no rate keeps the SLA. `start_time_s` is from its creation until it
    could serve, 0 if unknown. `bottleneck_code` is a place in `BOTTLENECKS` from 1, and
    `weights_tier_code` one in `WEIGHTS_TIERS`; 0 if unknown.
    `request_delay_ms`, `reply_delay_ms` and `retry_delay_ms` are of `policy.try_delays.TryDelays`.
    `power_limit_w` is the ceiling on the power of all replicas, 0 for none, and `powers` are the
    numbers of its `policy.tables.power.PowerTable`. `curve_code` and `power_code` are checksums of
    these series: under the same codes, a replica's series are those of its report before.
    `standby` is 1 if it stands by (`autoscaler.standbys`). Settings of None leave the autoscaler's
    unchanged.
    """

    replica_id: str
    time_s: float
    offered_total: float
    refused_total: float
    queue_length: float
    full_batch_size: float
    full_batch_ms: float
    sla_response_time_ms: float
    sla_percentile: float
    start_time_s: float = 0.0
    settings: AutoscalerSettings | None = None
    sla_rate_per_s: float = 0.0
    late_shares: tuple[float, ...] = ()
    overload_levels: tuple[float, ...] = ()
    answered_total: float = 0.0
    late_total: float = 0.0
    counted_s: float = 0.0
    bottleneck_code: float = 0.0
    weights_tier_code: float = 0.0
    refused_by_balancer_total: float = 0.0
    standby: float = 0.0
    request_delay_ms: float = TryDelays.request_delay_ms
    reply_delay_ms: float = TryDelays.reply_delay_ms
    retry_delay_ms: float = TryDelays.retry_delay_ms
    power_limit_w: float = 0.0
    powers: tuple[float, ...] = ()
    curve_code: float = 0.0
    power_code: float = 0.0

    def __post_init__(self) -> None:
        # Many reports come every second and nearly all are valid, so check all values at once.
        values = _checked(self)
        if not (
            min(values) >= 0
            and sum(values) < math.inf
            and self.full_batch_size > 0
            and self.full_batch_ms > 0
        ):
            self._raise_for_invalid_value()
        try:
            _objective(self.sla_response_time_ms, self.sla_percentile)
            if self.sla_rate_per_s:
                _curve(self.sla_rate_per_s, self.late_shares, self.overload_levels)
        except InvalidInputError as error:
            raise InvalidInputError(f"report of {self.replica_id}: {error}") from error

    def _raise_for_invalid_value(self) -> None:
        for name in ("time_s", *_REPORT_FLOATS):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise InvalidInputError(
                    f"report of {self.replica_id}: {name} must be at least 0 and finite, "
                    f"not {value}"
                )
        for name in ("full_batch_size", "full_batch_ms"):
            if getattr(self, name) == 0:
                raise InvalidInputError(f"report of {self.replica_id}: {name} must be above 0")

    @property
    def objective(self) -> ServiceLevelObjective:
        return _objective(self.sla_response_time_ms, self.sla_percentile)

    @property
    def delays(self) -> TryDelays:
        """The delays of a try; the limit of retries is among the settings."""
        return TryDelays(self.request_delay_ms, self.reply_delay_ms, self.retry_delay_ms)

    @property
    def curve(self) -> LoadLatenessCurve | None:
        """Its late share as a function of the arrival rate; None if that is not known."""
        if not self.sla_rate_per_s:
            return None
        return _curve(self.sla_rate_per_s, self.late_shares, self.overload_levels)

    @property
    def power_table(self) -> PowerTable | None:
        """Its power by arrival rate and response time; None without a ceiling on the power."""
        return PowerTable.from_floats(self.powers) if self.powers else None

    @property
    def bottleneck(self) -> str | None:
        """The bottleneck of the replica, one of `BOTTLENECKS`; None if it is not known."""
        place = int(self.bottleneck_code)
        return BOTTLENECKS[place - 1] if 1 <= place <= len(BOTTLENECKS) else None

    @property
    def out_of_reach(self) -> bool:
        return not self.sla_rate_per_s and bool(self.late_shares)

    def has_series_of(self, values: Mapping[str, float]) -> bool:
        """Return whether a later report of the same replica has the same curve and powers."""
        codes = values.get("curve_code", 0.0), values.get("power_code", 0.0)
        return codes[0] != 0 and codes == (self.curve_code, self.power_code)

    @classmethod
    def from_floats(
        cls,
        replica_id: str,
        time_s: float,
        values: Mapping[str, float],
        same_series: "ReplicaReport | None" = None,
    ) -> "ReplicaReport":
        """Read a report, with its settings if there are any, or raise `InvalidInputError`.

        The curve and the powers are those of `same_series`; None: they are among the values.
        """
        given = {name: values[name] for name in _REPORT_FLOATS if name in values}
        missing = [name for name in _REQUIRED if name not in given]
        if missing:
            raise InvalidInputError(f"report of {replica_id}: {', '.join(missing)} missing")
        if same_series is not None:
            late_shares, overload_levels = same_series.late_shares, same_series.overload_levels
            powers = same_series.powers
        else:
            late_shares, overload_levels, powers = (
                _series(names, values) for names in (_LATE_SHARES, _OVERLOAD_LEVELS, _POWERS)
            )
        return cls(
            replica_id,
            time_s,
            settings=_settings(tuple((name, values[name]) for name in _SETTINGS if name in values)),
            late_shares=late_shares,
            overload_levels=overload_levels,
            powers=powers,
            **given,
        )


def curve_fields(curve: LoadLatenessCurve | None, *, out_of_reach: bool = False) -> dict[str, Any]:
    """Return a curve as fields of a report; `out_of_reach`: there is none, and no rate will do."""
    if curve is None:
        shares = len(LoadLatenessCurve.MULTIPLES) * (1.0,) if out_of_reach else ()
        return {"sla_rate_per_s": 0.0, "late_shares": shares, "overload_levels": ()}
    names = ("sla_rate_per_s", "late_shares", "overload_levels")
    return {name: getattr(curve, name) for name in names}


def curve_to_floats(
    curve: LoadLatenessCurve | None, *, out_of_reach: bool = False
) -> dict[str, float]:
    """Return the fields of a curve as floats, with its code."""
    rate_per_s, shares, levels = curve_fields(curve, out_of_reach=out_of_reach).values()
    return {
        "sla_rate_per_s": rate_per_s,
        "curve_code": _code(shares + levels),
        **_numbered(_LATE_SHARE_PREFIX, shares),
        **_numbered(_OVERLOAD_LEVEL_PREFIX, levels),
    }


def power_to_floats(table: PowerTable) -> dict[str, float]:
    powers = table.to_floats()
    return {"power_code": _code(powers), **_numbered(_POWER_PREFIX, powers)}


def _code(values: tuple[float, ...]) -> float:
    return float(zlib.crc32(array("d", values).tobytes()))


def _numbered(prefix: str, values: tuple[float, ...]) -> dict[str, float]:
    return {f"{prefix}{number}": value for number, value in enumerate(values)}


def bottleneck_to_floats(bottleneck: str) -> dict[str, float]:
    return {"bottleneck_code": 1.0 + BOTTLENECKS.index(bottleneck)}


def weights_tier_to_floats(found_in: str | None) -> dict[str, float]:
    return {"weights_tier_code": 0.0 if found_in is None else 1.0 + WEIGHTS_TIERS.index(found_in)}


def delays_to_floats(delays: TryDelays) -> dict[str, float]:
    return {name: value for name, value in vars(delays).items() if name != "retries"}


_objective = lru_cache(maxsize=64)(ServiceLevelObjective)


@lru_cache(maxsize=64)
def _curve(
    sla_rate_per_s: float, late_shares: tuple[float, ...], overload_levels: tuple[float, ...]
) -> LoadLatenessCurve:
    return LoadLatenessCurve(sla_rate_per_s, late_shares, overload_levels=overload_levels)


_REPORT_FLOATS = tuple(
    value.name for value in fields(ReplicaReport) if value.type is float and value.name != "time_s"
)
_checked = attrgetter("time_s", *_REPORT_FLOATS)
_REQUIRED = tuple(
    value.name
    for value in fields(ReplicaReport)
    if value.name in _REPORT_FLOATS and (value.default is MISSING or value.name == "counted_s")
)
_SETTINGS = tuple(AutoscalerSettings().to_floats())


_LATE_SHARES = tuple(_numbered(_LATE_SHARE_PREFIX, LoadLatenessCurve.MULTIPLES))
_POWERS = tuple(_numbered(_POWER_PREFIX, PowerTable.SIZE * (0.0,)))
_OVERLOAD_LEVELS = tuple(_numbered(_OVERLOAD_LEVEL_PREFIX, LoadLatenessCurve.OVERLOADS))
#: The names of the floats of a report, with those of its settings, and of the series among them.
SCALARS, SERIES = (*_REPORT_FLOATS, *_SETTINGS), (*_LATE_SHARES, *_OVERLOAD_LEVELS, *_POWERS)


def _series(names: tuple[str, ...], values: Mapping[str, float]) -> tuple[float, ...]:
    """Return the values of `names`, -1 for a missing one; empty if the first is missing."""
    return tuple(values.get(name, -1.0) for name in names) if names[0] in values else ()


@lru_cache(maxsize=64)
def _settings(floats: tuple[tuple[str, float], ...]) -> AutoscalerSettings | None:
    """Return the settings in a report, nearly always those of the one before; None without any."""
    return AutoscalerSettings.from_floats(dict(floats)) if floats else None
