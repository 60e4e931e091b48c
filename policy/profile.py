"""A profile: the time and energy that a model takes on a device, per batch size.

Its file is JSON; latency and energy are each a line over the batch size or a table::

    {"model": "googlenet", "device": "tesla-p4", "max_batch_size": 32,
     "latency_ms": {"per_request": 0.3051, "fixed": 1.052},
     "energy_mj":  {"per_request": 19.90,  "fixed": 19.60}}

A table has one entry per batch size from 1 to `max_batch_size`. Optional keys: with
``"idle_power_w": 8.0`` the device draws 8 W while no batch is in service; ``latency_quantiles``
says how the time of a batch varies (`policy.latency_quantiles`); ``event_loop`` says what the event
loop spends on requests and batches (`policy.event_loop`); and ``"cpus": 1`` how many CPUs, and so
threads, the measurement had.
"""

import json
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from policy.errors import InfeasibleError, InvalidInputError
from policy.event_loop import EventLoopCosts
from policy.latency_quantiles import LatencyQuantiles
from policy.values import check_above_0, check_at_least, check_table, expand_table, number

FloatArray = NDArray[np.float64]
_T = TypeVar("_T")

#: Lower arrival rates are computed as this one: the times between arrivals would overflow.
LEAST_RATE_PER_S = 1e-100
#: At a higher load, a share of the capacity, rounding decides how long the queue is.
MAX_LOAD = 1 - 1e-9
TOO_CLOSE = f"; nothing is computed above {MAX_LOAD:.7%} of that"
# The equations of larger batches fill the memory.
_LARGEST_BATCH = 2048
# Times of batches that no device has: the squares of rates and times would overflow.
_LEAST_MS, _LONGEST_MS = 1e-9, 1e12


@dataclass(frozen=True, eq=False)
class Profile:
    """The time and energy that a model takes on a device, per batch size.

    Attributes
    ----------
    model, device : str
        Names, for reports only.
    latency_ms : ndarray of float, shape (max_batch_size,)
        Time a batch takes; entry ``b - 1`` is for batch size ``b``. Positive, non-decreasing.
    energy_mj : ndarray of float, shape (max_batch_size,), or None
        Energy a batch takes, likewise; None if it is not known.
    measured : mapping
        Details of the measurement, if there was one: quantiles per batch size, versions, date.
        Stored, never interpreted.
    idle_power_w : float or None
        Power that the device draws while no batch is in service; None if it is not known, and then
        not counted.
    latency_quantiles : LatencyQuantiles or None
        How the time of a batch varies; None: batches of one size all take the same time.
    event_loop : EventLoopCosts or None
        What requests and batches cost the event loop; None: nothing that matters.
    cpus : float or None
        CPUs, and so threads, that the measurement had; None if it is not known.
    """

    model: str
    device: str
    latency_ms: FloatArray
    energy_mj: FloatArray | None = None
    measured: Mapping[str, Any] = field(default_factory=dict)
    idle_power_w: float | None = None
    latency_quantiles: LatencyQuantiles | None = None
    event_loop: EventLoopCosts | None = None
    cpus: float | None = None

    def __post_init__(self) -> None:
        for name in ("latency_ms", "energy_mj"):
            table = getattr(self, name)
            if table is None:
                continue
            table = np.array(table, dtype=np.float64)
            check_table(name, table)
            table.setflags(write=False)
            object.__setattr__(self, name, table)
        shortest_ms, longest_ms = float(self.latency_ms[0]), float(self.latency_ms[-1])
        if not (shortest_ms >= _LEAST_MS and longest_ms <= _LONGEST_MS):
            wrong_ms = longest_ms if shortest_ms >= _LEAST_MS else shortest_ms
            raise InvalidInputError(
                f"profile: latency_ms must be from {_LEAST_MS:g} to {_LONGEST_MS:g}, "
                f"not {wrong_ms:g}"
            )
        if self.energy_mj is not None and self.energy_mj.size != self.latency_ms.size:
            raise InvalidInputError(
                f"profile: latency_ms has {self.latency_ms.size} batch sizes, energy_mj "
                f"{self.energy_mj.size}; both must have max_batch_size entries"
            )
        if self.idle_power_w is not None:
            self._check_idle_power(self.idle_power_w)
        quantiles = self.latency_quantiles
        if quantiles is not None and quantiles.ratios.shape[1] != self.latency_ms.size:
            raise InvalidInputError(
                f"profile: latency_quantiles has {quantiles.ratios.shape[1]} batch sizes, "
                f"latency_ms {self.latency_ms.size}; both must have max_batch_size entries"
            )
        if self.cpus is not None:
            check_above_0("profile: cpus", self.cpus)

    def _check_idle_power(self, idle_power_w: float) -> None:
        check_at_least(0, "profile: idle_power_w", idle_power_w)
        if self.energy_mj is None:
            raise InvalidInputError("profile: idle_power_w needs energy_mj")
        least_w = float(np.min(self.energy_mj / self.latency_ms))
        if idle_power_w > least_w * (1 + 1e-9):
            raise InvalidInputError(
                f"profile: idle_power_w must be at most {least_w:g}, the least power while a batch "
                f"is in service, not {idle_power_w:g}"
            )

    @property
    def max_batch_size(self) -> int:
        """Largest batch size."""
        return int(self.latency_ms.size)

    @property
    def capacity_per_s(self) -> float:
        """Highest throughput in requests per second, over all batch sizes, event loop included."""
        return float(np.max(self._rates_per_s))

    @property
    def best_batch_size(self) -> int:
        """Batch size of the highest throughput; the largest where several share it."""
        rates = self._rates_per_s
        return int(np.flatnonzero(rates >= rates.max() * (1 - 1e-12))[-1]) + 1

    @property
    def _rates_per_s(self) -> FloatArray:
        return 1e3 * (np.arange(1, self.max_batch_size + 1) / self.batch_interval_ms())

    def batch_interval_ms(self) -> FloatArray:
        """Return the least time between batches of each size, shape (max_batch_size,).

        It is that of the slower stage, or of both in turn; without an event loop, the batch's own
        time: its mean, where the mean is known and above `latency_ms`.
        """
        event_loop, profile = self.event_loop, self.serial()
        interval_ms = profile.latency_ms
        if profile.latency_quantiles is not None:
            means_ms = profile.latency_quantiles.means_ms(interval_ms)
            interval_ms = np.maximum(interval_ms, np.maximum.accumulate(means_ms))
        if event_loop is not None and not event_loop.shares_cpu:
            event_loop_ms = event_loop.ms_by_batch_size(self.max_batch_size)
            interval_ms = np.maximum(interval_ms, event_loop_ms)
        return np.asarray(interval_ms)

    def serial(self) -> "Profile":
        """Return the profile of event loop and device as one server, if they share a CPU.

        A batch then takes the event loop's time as well, and its requests with it. In that time the
        device draws its idle power. The result has no `event_loop`. A profile without an event
        loop, or with one beside the device, is returned as it is.
        """
        event_loop = self.event_loop
        if event_loop is None or not event_loop.shares_cpu:
            return self
        event_loop_ms = event_loop.ms_by_batch_size(self.max_batch_size)
        latency_ms, quantiles = self.latency_ms + event_loop_ms, self.latency_quantiles
        if quantiles is not None:
            ratios = (quantiles.ratios * self.latency_ms + event_loop_ms) / latency_ms
            quantiles = replace(quantiles, ratios=ratios)
        energy_mj = self.energy_mj
        if energy_mj is not None:
            energy_mj = energy_mj + (self.idle_power_w or 0.0) * event_loop_ms
        return replace(
            self,
            latency_ms=latency_ms,
            energy_mj=energy_mj,
            latency_quantiles=quantiles,
            event_loop=None,
        )

    def bottleneck(
        self, arrival_rate_per_s: float, mean_batch_size: float | None = None
    ) -> Literal["event_loop", "device"]:
        """Return which stage spends more time per request.

        Parameters
        ----------
        mean_batch_size : float, optional
            Of the policy in use. By default, the smallest size that keeps up with the arrivals, or
            the best one if none does: that of a device which starts whenever it is free.
        """
        if self.event_loop is None:
            return "device"
        if mean_batch_size is None:
            enough = np.flatnonzero(self._rates_per_s > arrival_rate_per_s)
            mean_batch_size = float(enough[0] + 1) if enough.size else float(self.best_batch_size)
        batch_size = min(max(mean_batch_size, 1.0), float(self.max_batch_size))
        sizes = np.arange(1, self.max_batch_size + 1)
        device_ms = float(np.interp(batch_size, sizes, self.latency_ms)) / batch_size
        return "event_loop" if self.event_loop.ms_per_request(batch_size) > device_ms else "device"

    def up_to(self, batch_size: int) -> "Profile":
        """Return the profile without the batch sizes above `batch_size`."""
        check_at_least(1, "batch size", batch_size)
        if batch_size >= self.max_batch_size:
            return self
        quantiles = self.latency_quantiles
        return replace(
            self,
            latency_ms=self.latency_ms[:batch_size],
            energy_mj=None if self.energy_mj is None else self.energy_mj[:batch_size],
            latency_quantiles=None if quantiles is None else quantiles.up_to(batch_size),
        )

    def with_mean_times(self) -> "Profile":
        """Return the profile whose batches all take their mean time; itself if they do."""
        if self.latency_quantiles is None:
            return self
        latency_ms = np.maximum.accumulate(self.latency_quantiles.means_ms(self.latency_ms))
        energy_mj = self.energy_mj
        if energy_mj is not None and self.idle_power_w is not None:
            energy_mj = np.maximum(energy_mj, self.idle_power_w * latency_ms)
        return replace(self, latency_ms=latency_ms, energy_mj=energy_mj, latency_quantiles=None)

    def energy_mj_for_weight(self, energy_weight: float) -> FloatArray:
        """Return the energy by batch size; zeros where it is neither known nor asked for.

        What the idle device would take in the same time is left out: it is paid in any case, so
        only the rest depends on the policy. Add `idle_power_w` to the power that results.

        Raises
        ------
        InvalidInputError
            `energy_weight` is above 0, but the profile has no energy.
        """
        if self.energy_mj is not None:
            return self.energy_mj - (self.idle_power_w or 0.0) * self.latency_ms
        if energy_weight > 0:
            raise InvalidInputError(
                f"energy weight: must be 0 for a profile without energy_mj, not {energy_weight:g}"
            )
        return np.zeros(self.max_batch_size)

    def arrivals_per_ms(self, arrival_rate_per_s: float) -> float:
        """Return an arrival rate per millisecond, if a replica can keep up with it.

        Raises
        ------
        InvalidInputError
            The rate is not a finite number above 0.
        InfeasibleError
            The rate is at or above `capacity_per_s`: the queue would grow without end.
        """
        capacity_per_s = self.capacity_per_s
        check_above_0("arrival rate", arrival_rate_per_s)
        if arrival_rate_per_s >= MAX_LOAD * capacity_per_s:
            stage = "event loop" if self.bottleneck(capacity_per_s) == "event_loop" else "device"
            raise InfeasibleError(
                f"arrival rate: {arrival_rate_per_s:g} per second is not below the "
                f"{capacity_per_s:g} per second that the {stage} can serve"
                + (TOO_CLOSE if arrival_rate_per_s < capacity_per_s else "")
            )
        return max(arrival_rate_per_s, LEAST_RATE_PER_S) / 1e3

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Profile":
        """Make a profile from the content of a profile file."""
        if not isinstance(content, Mapping):
            raise InvalidInputError("profile: must be a JSON object with latency_ms")
        size = content.get("max_batch_size")
        if size is None and isinstance(content.get("latency_ms"), list):
            size = len(content["latency_ms"])
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise InvalidInputError(
                f"profile: max_batch_size must be a whole number of at least 1, not {size!r}"
            )
        if size > _LARGEST_BATCH:
            raise InvalidInputError(
                f"profile: max_batch_size must be at most {_LARGEST_BATCH}, "
                f"not {reprlib.repr(size)}"
            )
        if content.get("latency_ms") is None:
            raise InvalidInputError("profile: latency_ms is missing")

        def read(key: str, reader: Callable[[Any], _T]) -> _T | None:
            return None if (value := content.get(key)) is None else reader(value)

        return cls(
            model=str(content.get("model", "unnamed")),
            device=str(content.get("device", "unnamed")),
            latency_ms=expand_table("latency_ms", content["latency_ms"], size),
            energy_mj=read("energy_mj", lambda value: expand_table("energy_mj", value, size)),
            measured=cast(Mapping[str, Any], content.get("measured") or {}),
            idle_power_w=read("idle_power_w", partial(number, "idle_power_w")),
            latency_quantiles=read(
                "latency_quantiles", lambda value: LatencyQuantiles.from_dict(value, size)
            ),
            event_loop=read("event_loop", EventLoopCosts.from_dict),
            cpus=read("cpus", partial(number, "cpus")),
        )

    @classmethod
    def load(cls, path: str | Path) -> "Profile":
        """Read a profile file."""
        try:
            content = json.loads(Path(path).read_text())
        except OSError as error:
            raise InvalidInputError(f"profile {path}: {error.strerror}") from error
        except ValueError as error:
            raise InvalidInputError(f"profile {path}: not JSON ({error})") from error
        try:
            return cls.from_dict(content)
        except InvalidInputError as error:
            raise InvalidInputError(f"{path}: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the profile's file, in the table form."""
        quantiles, event_loop = self.latency_quantiles, self.event_loop
        content = {
            "model": self.model,
            "device": self.device,
            "max_batch_size": self.max_batch_size,
            "latency_ms": self.latency_ms.tolist(),
            "energy_mj": None if self.energy_mj is None else self.energy_mj.tolist(),
            "idle_power_w": self.idle_power_w,
            "latency_quantiles": quantiles and quantiles.to_dict(),
            "event_loop": event_loop and event_loop.to_dict(),
            "cpus": self.cpus,
            "measured": dict(self.measured) or None,
        }
        return {key: value for key, value in content.items() if value is not None}

    def save(self, path: str | Path) -> None:
        """Write the profile's file."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=1) + "\n")
