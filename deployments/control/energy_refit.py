"""Refit a profile's energy to what the device's meter counts, and measure its power."""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from policy.profile import Profile


class EnergyRefit:
    """Detect that a profile's energy is wrong, and refit it to the latest ticks.

    In a tick of t ms with batches of the sizes b, a device counts i·t + f·Σ(e_b - i·τ_b), with i
    its idle power, and e_b and τ_b the energy and time of a batch by the profile. Ticks without
    batches give i, the others f, which is 1 if the profile is right. So the shape of the energy by
    batch size stays as measured. As a latency, an energy is refitted only if it is off by more than
    `TOLERANCE` in two successive calls of `revise`, and by more than chance.
    """

    #: Ticks remembered, and ticks that are judged.
    MAX_TICKS, MIN_TICKS = 60, 8
    #: Relative error of the energy that is tolerated.
    TOLERANCE = 0.15
    #: Ticks over which `power_w` is the mean.
    POWER_TICKS = 10

    def __init__(self) -> None:
        #: By tick: energy in mJ, time in ms, and the sizes of its batches.
        self._ticks: deque[tuple[float, float, list[int]]] = deque(maxlen=self.MAX_TICKS)
        self._new_ticks = 0
        self._was_off = False

    def observe(self, energy_mj: float, elapsed_ms: float, sizes: Iterable[int]) -> None:
        """Record a tick."""
        self._ticks.append((energy_mj, elapsed_ms, list(sizes)))
        self._new_ticks += 1

    @property
    def power_w(self) -> float | None:
        """The mean power of the last ticks; None without any."""
        last = list(self._ticks)[-self.POWER_TICKS :]
        elapsed_ms = sum(elapsed_ms for _, elapsed_ms, _ in last)
        return sum(energy_mj for energy_mj, _, _ in last) / elapsed_ms if elapsed_ms else None

    def revise(self, profile: Profile) -> Profile | None:
        """Return the profile with another energy if its own is wrong, else None."""
        if profile.energy_mj is None or self._new_ticks < self.MIN_TICKS:
            return None
        self._new_ticks = 0
        believed_w = profile.idle_power_w or 0.0
        idle_w = self._idle_power_w(believed_w)
        factor = self._factor(profile, idle_w)
        is_off = abs(idle_w - believed_w) > self.TOLERANCE * max(idle_w, believed_w)
        if not (is_off or factor != 1.0) or not self._was_off:
            self._was_off = is_off or factor != 1.0
            return None
        self._was_off = False
        above_idle_mj = factor * profile.energy_mj_for_weight(1.0)
        energy_mj = np.maximum.accumulate(above_idle_mj + idle_w * profile.latency_ms)
        return replace(profile, energy_mj=energy_mj, idle_power_w=idle_w)

    def _idle_power_w(self, believed_w: float) -> float:
        """Return the median power of the ticks without batches, if there are enough of them."""
        powers_w = [energy_mj / t_ms for energy_mj, t_ms, sizes in self._ticks if not sizes]
        return float(np.median(powers_w)) if len(powers_w) >= self.MIN_TICKS else believed_w

    def _factor(self, profile: Profile, idle_w: float) -> float:
        """Return the energy of batches, above that of the idle device, over the profile's."""
        by_size = profile.energy_mj_for_weight(1.0)
        largest = profile.max_batch_size
        busy = [tick for tick in self._ticks if tick[2] and max(tick[2]) <= largest]
        expected_mj = np.array([by_size[np.array(sizes) - 1].sum() for _, _, sizes in busy])
        if len(busy) < self.MIN_TICKS or not expected_mj.sum() > 0:
            return 1.0
        measured_mj = np.array([energy_mj - idle_w * ms for energy_mj, ms, _ in busy])
        factor = float(measured_mj.sum() / expected_mj.sum())
        # A batch that spans two ticks is counted in one, its energy in both: noise, like the rest.
        residuals_mj = measured_mj - factor * expected_mj
        error = math.sqrt(float((residuals_mj**2).sum())) / float(expected_mj.sum())
        return factor if factor > 0 and abs(factor - 1) > max(self.TOLERANCE, 2 * error) else 1.0
