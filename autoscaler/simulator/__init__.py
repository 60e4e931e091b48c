"""A fleet in virtual time, with the real batching policy, batcher core and autoscaler.

Users can import all they need from here. Modules load on first use, so that reading a trace does
not load the compiler.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autoscaler.history.traces import load_trace
    from autoscaler.simulator.arrivals import WithinSecond, poisson_counts
    from autoscaler.simulator.autoscalers.fixed import FixedFleet
    from autoscaler.simulator.autoscalers.oracle import Clairvoyant
    from autoscaler.simulator.autoscalers.registry import AUTOSCALERS
    from autoscaler.simulator.autoscalers.sojourn import SojournAutoscaler
    from autoscaler.simulator.engines.interface import Routing
    from autoscaler.simulator.fleet import Failures
    from autoscaler.simulator.results import Run
    from autoscaler.simulator.scaling import FleetView, ScalingPolicy
    from autoscaler.simulator.scenario import Scenario
    from autoscaler.simulator.simulation import Simulation, simulate
    from autoscaler.simulator.start_time import StartTime
    from policy.objective import ServiceLevelObjective
    from policy.profile import Profile

__all__ = [
    "AUTOSCALERS",
    "Clairvoyant",
    "Failures",
    "FixedFleet",
    "FleetView",
    "Profile",
    "Routing",
    "Run",
    "ScalingPolicy",
    "Scenario",
    "ServiceLevelObjective",
    "Simulation",
    "SojournAutoscaler",
    "StartTime",
    "WithinSecond",
    "load_trace",
    "poisson_counts",
    "simulate",
]

_MODULES = {
    "AUTOSCALERS": "autoscaler.simulator.autoscalers.registry",
    "Clairvoyant": "autoscaler.simulator.autoscalers.oracle",
    "Failures": "autoscaler.simulator.fleet",
    "FixedFleet": "autoscaler.simulator.autoscalers.fixed",
    "FleetView": "autoscaler.simulator.scaling",
    "Profile": "policy.profile",
    "Routing": "autoscaler.simulator.engines.interface",
    "Run": "autoscaler.simulator.results",
    "ScalingPolicy": "autoscaler.simulator.scaling",
    "Scenario": "autoscaler.simulator.scenario",
    "ServiceLevelObjective": "policy.objective",
    "Simulation": "autoscaler.simulator.simulation",
    "SojournAutoscaler": "autoscaler.simulator.autoscalers.sojourn",
    "StartTime": "autoscaler.simulator.start_time",
    "WithinSecond": "autoscaler.simulator.arrivals",
    "load_trace": "autoscaler.history.traces",
    "poisson_counts": "autoscaler.simulator.arrivals",
    "simulate": "autoscaler.simulator.simulation",
}


def __getattr__(name: str) -> object:
    """Import a name of `__all__` from its module."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
