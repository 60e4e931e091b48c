"""The live engine's load balancer."""

from collections.abc import Sequence

import numpy as np

from autoscaler.simulator.engines.interface import Routing
from autoscaler.simulator.engines.kernel import draw
from autoscaler.simulator.engines.live_replica import LiveReplica


class Balancer:
    """Picks replicas by `Routing`, the same ones as the compiled kernel's `route`."""

    def __init__(self, routing: Routing, seed: int) -> None:
        self._routing = routing
        self._random = np.array([seed], np.uint64)

    def pick(self, ready: Sequence[LiveReplica], avoid: int | None) -> LiveReplica:
        """Return the replica for an attempt.

        Parameters
        ----------
        ready : sequence of LiveReplica
            Replicas that take requests, at least one.
        avoid : int or None
            Slot of the replica that has just refused the request.
        """
        if self._routing is Routing.RANDOM:
            return self._pick_random(ready, avoid)
        if self._routing is Routing.POWER_OF_TWO:
            pair = (self._pick_random(ready, avoid), self._pick_random(ready, avoid))
            return min(pair, key=lambda replica: replica.load)
        offset = draw(self._random, len(ready))
        others = [
            replica
            for replica in (*ready[offset:], *ready[:offset])
            if replica.slot != avoid or len(ready) == 1
        ]
        return min(others, key=lambda replica: replica.load)

    def _pick_random(self, ready: Sequence[LiveReplica], avoid: int | None) -> LiveReplica:
        """Pick a ready replica at random, other than `avoid` if there is another."""
        index = draw(self._random, len(ready))
        if ready[index].slot == avoid and len(ready) > 1:
            index = (index + 1 + draw(self._random, len(ready) - 1)) % len(ready)
        return ready[index]
