"""A fleet on virtual time, run by the real batching policy, batcher core and autoscaler.

What a user needs can be imported from here. Its module is loaded on first use, so that reading a
trace does not load the compiler.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autoscaler.history.traces import load_trace
    from policy.objective import ServiceLevelObjective
    from policy.profile import Profile
    from simulator.arrivals import TwoStateRate, WithinSecond, poisson_counts
    from simulator.autoscalers.fixed import FixedFleet
    from simulator.autoscalers.oracle import Clairvoyant
    from simulator.autoscalers.registry import AUTOSCALERS
    from simulator.autoscalers.sojourn import SojournAutoscaler
    from simulator.engines.interface import Routing
    from simulator.fleet import Failures
    from simulator.policy_tables import policy_table
    from simulator.results import Run
    from simulator.scaling import FleetView, ScalingPolicy
    from simulator.scenario import Scenario
    from simulator.simulation import Simulation, simulate
    from simulator.standbys import Standbys
    from simulator.start_time import StartTime

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
    "Standbys",
    "StartTime",
    "TwoStateRate",
    "WithinSecond",
    "load_trace",
    "poisson_counts",
    "policy_table",
    "simulate",
]

_MODULES = {
    "AUTOSCALERS": "simulator.autoscalers.registry",
    "Clairvoyant": "simulator.autoscalers.oracle",
    "Failures": "simulator.fleet",
    "FixedFleet": "simulator.autoscalers.fixed",
    "FleetView": "simulator.scaling",
    "Profile": "policy.profile",
    "Routing": "simulator.engines.interface",
    "Run": "simulator.results",
    "ScalingPolicy": "simulator.scaling",
    "Scenario": "simulator.scenario",
    "ServiceLevelObjective": "policy.objective",
    "Simulation": "simulator.simulation",
    "SojournAutoscaler": "simulator.autoscalers.sojourn",
    "Standbys": "simulator.standbys",
    "StartTime": "simulator.start_time",
    "TwoStateRate": "simulator.arrivals",
    "WithinSecond": "simulator.arrivals",
    "load_trace": "autoscaler.history.traces",
    "poisson_counts": "simulator.arrivals",
    "policy_table": "simulator.policy_tables",
    "simulate": "simulator.simulation",
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
