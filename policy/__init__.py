"""The mathematics of batching: when a free device should start a batch, and what follows.

No Ray, no torch, no clock: numbers in, numbers out.

>>> from policy import Profile, Weights, solve
>>> profile = Profile("model", "device", latency_ms=[1.0, 1.2, 1.4, 1.6])
>>> solve(profile, 900.0, Weights(latency_weight=1.0)).policy.control_limit
1

Names are imported on first use: `policy.errors` is imported everywhere, and scipy, which the
solvers need, takes half a second.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from policy.batching_policy import BatchingPolicy
    from policy.errors import InfeasibleError, InvalidInputError, SojournError
    from policy.load_lateness import LoadLatenessCurve, solve_load_lateness_curve
    from policy.objective import ServiceLevelObjective, Weights
    from policy.optimization import solve
    from policy.profile import Profile
    from policy.response_time.evaluation import Evaluation, evaluate
    from policy.solution import Solution
    from policy.table import PolicyTable
    from policy.table_solving import solve_table

__all__ = [
    "BatchingPolicy",
    "Evaluation",
    "InfeasibleError",
    "InvalidInputError",
    "LoadLatenessCurve",
    "PolicyTable",
    "Profile",
    "ServiceLevelObjective",
    "SojournError",
    "Solution",
    "Weights",
    "evaluate",
    "solve",
    "solve_load_lateness_curve",
    "solve_table",
]

_MODULES = {
    "BatchingPolicy": "policy.batching_policy",
    "Evaluation": "policy.response_time.evaluation",
    "InfeasibleError": "policy.errors",
    "InvalidInputError": "policy.errors",
    "LoadLatenessCurve": "policy.load_lateness",
    "PolicyTable": "policy.table",
    "Profile": "policy.profile",
    "ServiceLevelObjective": "policy.objective",
    "SojournError": "policy.errors",
    "Solution": "policy.solution",
    "Weights": "policy.objective",
    "evaluate": "policy.response_time.evaluation",
    "solve": "policy.optimization",
    "solve_load_lateness_curve": "policy.load_lateness",
    "solve_table": "policy.table_solving",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
