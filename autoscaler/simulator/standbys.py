"""The standbys of a simulated fleet: up or starting, without traffic, at `STANDBY_PRICE`."""

from numpy.random import Generator

from autoscaler.simulator.start_time import StartTime
from autoscaler.standbys import STANDBY_PRICE


class StandbyPool:
    """The standbys of a fleet: up after `cold`, and serving `start_time` after being taken."""

    def __init__(
        self, start_time: StartTime, cold: StartTime, failed_start_share: float, random: Generator
    ) -> None:
        self._start_time = start_time
        self._cold = cold
        self._failed_share = failed_start_share
        self._random = random
        # (up at, paid since), in order of being up.
        self._members: list[tuple[float, float]] = []
        self._paid_s = 0.0

    def __len__(self) -> int:
        return len(self._members)

    def take(self, now_s: float) -> float | None:
        """Remove the first standby that is up, if any; return its time to serve in s."""
        if not self._members:
            return None
        up_s, since_s = self._members.pop(0)
        self._pay(since_s, now_s)
        return max(0.0, up_s - now_s) + self._start_time.draw_s(self._random)

    def put(self, now_s: float, up_s: float) -> None:
        """Add a former replica that is up, or will be at `up_s`."""
        self._members.append((max(now_s, up_s), now_s))
        self._members.sort()

    def scale_to(self, now_s: float, count: int) -> None:
        """Order standbys, or release the last ones to be up."""
        while len(self._members) < count:
            up_s = now_s + self._cold.draw_s(self._random)
            while self._failed_share and self._random.random() < self._failed_share:
                up_s += self._cold.draw_s(self._random)
            self.put(now_s, up_s)
        while len(self._members) > count:
            self._pay(self._members.pop()[1], now_s)

    def finish(self, end_s: float) -> float:
        """Release all standbys, and return their paid replica-seconds."""
        self.scale_to(end_s, 0)
        return self._paid_s

    def _pay(self, since_s: float, until_s: float) -> None:
        self._paid_s += STANDBY_PRICE * (until_s - since_s)
