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
    from autoscaler.history.traces import load_trace as load_trace
    from autoscaler.simulator.autoscalers.sojourn import SojournAutoscaler as SojournAutoscaler
    from autoscaler.simulator.scenario import Scenario as Scenario
    from autoscaler.simulator.simulation import simulate as simulate
    from autoscaler.simulator.start_time import StartTime as StartTime
    from deployments.errors import BadRequestError as BadRequestError
    from deployments.errors import RequestError as RequestError
    from deployments.errors import RowsError as RowsError
    from deployments.models.base import Model as Model
    from deployments.models.base import TensorSpec as TensorSpec
    from deployments.modelstore.client import open_model as open_model
    from deployments.modelstore.errors import StoreError as StoreError
    from deployments.modelstore.sharing import shared_weights as shared_weights
    from deployments.modelstore.tensors import load_state_dict as load_state_dict
    from deployments.pipelines.core.errors import StageError as StageError
    from deployments.pipelines.core.steps import Each as Each
    from deployments.pipelines.core.steps import Ensemble as Ensemble
    from deployments.pipelines.core.steps import Stage as Stage
    from deployments.pipelines.core.steps import Switch as Switch
    from deployments.pipelines.pipeline import Pipeline as Pipeline
    from policy.batching_policy import BatchingPolicy as BatchingPolicy
    from policy.errors import InfeasibleError as InfeasibleError
    from policy.errors import InvalidInputError as InvalidInputError
    from policy.errors import SojournError as SojournError
    from policy.objective import ServiceLevelObjective as ServiceLevelObjective
    from policy.objective import Weights as Weights
    from policy.optimization import solve as solve
    from policy.profile import Profile as Profile
    from policy.response_time.evaluation import Evaluation as Evaluation
    from policy.response_time.evaluation import evaluate as evaluate
    from policy.solvers.solution import Solution as Solution
    from policy.tables.solving import solve_table as solve_table
    from policy.tables.table import PolicyTable as PolicyTable

_NAMES = {
    "autoscaler.history.traces": "load_trace",
    "autoscaler.simulator.autoscalers.sojourn": "SojournAutoscaler",
    "autoscaler.simulator.scenario": "Scenario",
    "autoscaler.simulator.simulation": "simulate",
    "autoscaler.simulator.start_time": "StartTime",
    "deployments.errors": "BadRequestError RequestError RowsError",
    "deployments.models.base": "Model TensorSpec",
    "deployments.modelstore.client": "open_model",
    "deployments.modelstore.errors": "StoreError",
    "deployments.modelstore.sharing": "shared_weights",
    "deployments.modelstore.tensors": "load_state_dict",
    "deployments.pipelines.core.errors": "StageError",
    "deployments.pipelines.core.steps": "Each Ensemble Stage Switch",
    "deployments.pipelines.pipeline": "Pipeline",
    "policy.batching_policy": "BatchingPolicy",
    "policy.errors": "InfeasibleError InvalidInputError SojournError",
    "policy.objective": "ServiceLevelObjective Weights",
    "policy.optimization": "solve",
    "policy.profile": "Profile",
    "policy.response_time.evaluation": "Evaluation evaluate",
    "policy.solvers.solution": "Solution",
    "policy.tables.table": "PolicyTable",
    "policy.tables.solving": "solve_table",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
