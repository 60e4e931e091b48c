"""Sojourn keeps response-time SLAs on Ray Serve with the fewest replicas and the least energy.

What a user's code imports is here:

>>> from sojourn import Profile, Weights, solve
>>> profile = Profile("model", "device", latency_ms=[1.0, 1.2, 1.4, 1.6])
>>> solve(profile, 900.0, Weights(latency_weight=1.0)).policy.control_limit
1

Names are imported on first use, so that a model's module needs neither Ray, nor torch, nor numba.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoscaler.history.traces import load_trace
    from autoscaler.simulator.autoscalers.sojourn import SojournAutoscaler
    from autoscaler.simulator.scenario import Scenario
    from autoscaler.simulator.simulation import simulate
    from autoscaler.simulator.start_time import StartTime
    from deployments.errors import BadRequestError, RequestError, RowsError
    from deployments.models.base import Model, TensorSpec
    from deployments.modelstore.client import open_model
    from deployments.modelstore.errors import StoreError
    from deployments.modelstore.tensors import load_state_dict
    from deployments.pipelines.core.errors import StageError
    from deployments.pipelines.core.steps import Each, Ensemble, Stage, Switch
    from deployments.pipelines.pipeline import Pipeline
    from policy.batching_policy import BatchingPolicy
    from policy.errors import InfeasibleError, InvalidInputError, SojournError
    from policy.objective import ServiceLevelObjective, Weights
    from policy.optimization import solve
    from policy.profile import Profile
    from policy.response_time.evaluation import Evaluation, evaluate
    from policy.solvers.solution import Solution
    from policy.table import PolicyTable
    from policy.table_solving import solve_table

__all__ = [
    "BadRequestError",
    "BatchingPolicy",
    "Each",
    "Ensemble",
    "Evaluation",
    "InfeasibleError",
    "InvalidInputError",
    "Model",
    "Pipeline",
    "PolicyTable",
    "Profile",
    "RequestError",
    "RowsError",
    "Scenario",
    "ServiceLevelObjective",
    "SojournAutoscaler",
    "SojournError",
    "Solution",
    "Stage",
    "StageError",
    "StartTime",
    "StoreError",
    "Switch",
    "TensorSpec",
    "Weights",
    "evaluate",
    "load_state_dict",
    "load_trace",
    "open_model",
    "simulate",
    "solve",
    "solve_table",
]

_MODULES = {
    "BadRequestError": "deployments.errors",
    "BatchingPolicy": "policy.batching_policy",
    "Each": "deployments.pipelines.core.steps",
    "Ensemble": "deployments.pipelines.core.steps",
    "Evaluation": "policy.response_time.evaluation",
    "InfeasibleError": "policy.errors",
    "InvalidInputError": "policy.errors",
    "Model": "deployments.models.base",
    "Pipeline": "deployments.pipelines.pipeline",
    "PolicyTable": "policy.table",
    "Profile": "policy.profile",
    "RequestError": "deployments.errors",
    "RowsError": "deployments.errors",
    "Scenario": "autoscaler.simulator.scenario",
    "ServiceLevelObjective": "policy.objective",
    "SojournAutoscaler": "autoscaler.simulator.autoscalers.sojourn",
    "SojournError": "policy.errors",
    "Solution": "policy.solvers.solution",
    "Stage": "deployments.pipelines.core.steps",
    "StageError": "deployments.pipelines.core.errors",
    "StartTime": "autoscaler.simulator.start_time",
    "StoreError": "deployments.modelstore.errors",
    "Switch": "deployments.pipelines.core.steps",
    "TensorSpec": "deployments.models.base",
    "Weights": "policy.objective",
    "evaluate": "policy.response_time.evaluation",
    "load_state_dict": "deployments.modelstore.tensors",
    "load_trace": "autoscaler.history.traces",
    "open_model": "deployments.modelstore.client",
    "simulate": "autoscaler.simulator.simulation",
    "solve": "policy.optimization",
    "solve_table": "policy.table_solving",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
