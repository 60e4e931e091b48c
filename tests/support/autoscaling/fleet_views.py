"""Views of fleets for tests of simulated autoscalers, and an autoscaler that follows a script."""

from autoscaler.reports import ReplicaReport
from autoscaler.simulator.scaling import FleetView, ScalingPolicy


def view(
    now_s: float,
    *,
    offered: float = 0.0,
    ongoing: float = 0.0,
    ready: int = 1,
    ordered: int | None = None,
    standbys: int = 0,
    reports: tuple[ReplicaReport, ...] = (),
) -> FleetView:
    """Return a fleet at the end of a second; all ordered replicas serve unless stated otherwise."""
    return FleetView(
        now_s=now_s,
        ordered=ready if ordered is None else ordered,
        ready=ready,
        standbys=standbys,
        offered=offered,
        ongoing=ongoing,
        reports=lambda: list(reports),
    )


def fleet_sizes(policy: ScalingPolicy, offered: list[float]) -> list[int]:
    """Scale a fleet by a policy, without start times, and return its size in each second."""
    sizes = [1]
    for second, requests in enumerate(offered, start=1):
        sizes.append(policy.replicas(view(second, offered=requests, ready=sizes[-1])))
    return sizes[1:]


class Scripted:
    """Order so many replicas, and standbys, from each time in s of a script on; keep the views."""

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
