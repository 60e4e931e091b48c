"""The result of a simulated run: values per second, and their summaries."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from policy.objective import ServiceLevelObjective

FloatArray = NDArray[np.float64]

#: Length of the windows in which compliance with the SLA is judged.
WINDOW_S = 60
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Run:
    """The result of one autoscaler on one scenario.

    Arrays of shape (seconds,) have an entry for each second. A request belongs to the second in
    which its client sent it.

    Attributes
    ----------
    offered, in_time, refused : FloatArray, shape (seconds,)
        Requests sent, answered within the SLA's response time, and refused by every try.
    ordered, ready : FloatArray, shape (seconds,)
        Replicas ordered (including starting ones) and replicas that serve; means over the second.
    paid_replica_s : float
        Replica-seconds paid for: from a replica's order until it is gone, its draining included.
    forecast_per_s : FloatArray, shape (seconds,)
        Arrival rate that the autoscaler sized for; NaN where it states none.
    energy_j : FloatArray, shape (seconds,)
        Energy of the batches, and of the devices while idle if the profile has their idle power;
        NaN where the profile has none.
    histogram : FloatArray, shape (bins,)
        Answered requests by response time.
    bin_edges_ms : FloatArray, shape (bins + 1,)
        Edges of the histogram's bins.
    device_busy_s, event_loop_busy_s : float
        Time for which the devices and the event loops of all replicas were busy, in s.
    """

    name: str
    objective: ServiceLevelObjective
    offered: FloatArray
    in_time: FloatArray
    refused: FloatArray
    ordered: FloatArray
    ready: FloatArray
    paid_replica_s: float
    forecast_per_s: FloatArray
    energy_j: FloatArray
    histogram: FloatArray
    bin_edges_ms: FloatArray
    device_busy_s: float = 0.0
    event_loop_busy_s: float = 0.0

    @property
    def service_level(self) -> float:
        """Share of the offered requests that were answered in time; 1 if none was offered."""
        offered = float(self.offered.sum())
        return float(self.in_time.sum()) / offered if offered else 1.0

    @property
    def bottleneck(self) -> Literal["event_loop", "device"]:
        """The stage of the replicas that was busy for longer."""
        return "event_loop" if self.event_loop_busy_s > self.device_busy_s else "device"

    def windows_in_time(self) -> FloatArray:
        """Return the share in time in each window of `WINDOW_S` seconds; 1 without a request.

        The last window may be shorter.
        """
        offered, in_time = _by_window(self.offered), _by_window(self.in_time)
        return np.divide(in_time, offered, out=np.ones_like(offered), where=offered > 0)

    def compliant(self) -> NDArray[np.bool_]:
        """Return whether each window met the SLA, shape (windows,)."""
        return self.windows_in_time() >= self.objective.least_level

    def judged(self) -> NDArray[np.bool_]:
        """Return whether a request was offered in each window, shape (windows,)."""
        return _by_window(self.offered) > 0

    @property
    def compliant_windows(self) -> float:
        """Share of the windows that met the SLA, of those with requests; 1 if none has any."""
        judged = self.judged()
        return float(np.mean(self.compliant()[judged])) if judged.any() else 1.0

    @property
    def most_power_w(self) -> float:
        """The highest mean power of a full window, in W; of the run if that is shorter."""
        energy_j, seconds = _by_window(self.energy_j), self.energy_j.size
        return float(energy_j[: max(1, seconds // WINDOW_S)].max()) / min(seconds, WINDOW_S)

    @property
    def scalings_per_hour(self) -> float:
        """Changes of the number of ordered replicas per hour."""
        changes = int(np.count_nonzero(np.diff(np.round(self.ordered))))
        return 3600 * changes / self.offered.size

    def response_percentile_ms(self, percentile: float) -> float:
        """Return a percentile of the answered requests' response time; NaN if none was answered."""
        cumulative = np.cumsum(self.histogram)
        if not cumulative[-1]:
            return math.nan
        wanted = percentile / 100 * cumulative[-1]
        # 99.9% of 1000 must not be a little more than 999.
        index = int(np.searchsorted(cumulative, wanted * (1 - _ROUNDING)))
        before = cumulative[index - 1] if index else 0.0
        low, high = self.bin_edges_ms[index], self.bin_edges_ms[index + 1]
        return float(low + (high - low) * (wanted - before) / self.histogram[index])


def _by_window(by_second: FloatArray) -> FloatArray:
    """Return the sum of each window, shape (windows,)."""
    return np.add.reduceat(by_second, np.arange(0, by_second.size, WINDOW_S))
