"""A simulated autoscaler that follows a script."""

from autoscaler.simulator.scaling import FleetView


class Scripted:
    """Order replicas by a script, and keep the views.

    Parameters
    ----------
    *script : tuple of (float, int) or (float, int, int)
        From a time in s on, so many replicas, and so many standbys (0 if left out).
    """

    name = "scripted"

    def __init__(self, *script: tuple[float, ...]) -> None:
        self.script = script
        self.standbys = 0
        self.views: list[FleetView] = []

    def replicas(self, view: FleetView) -> int:
        self.views.append(view)
        _, replicas, *standbys = [row for row in self.script if view.now_s >= row[0]][-1]
        self.standbys = int(sum(standbys))
        return int(replicas)
