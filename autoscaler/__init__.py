"""Decide how many replicas keep a service-level agreement (SLA) on response times.

`Autoscaler` turns the replicas' reports into decisions; `least_replicas` sizes a fleet for a
known load. Nothing here needs Ray: the policy for Ray Serve is `autoscaler.ray_adapter`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoscaler.controller import Autoscaler
    from autoscaler.decision import Decision, FleetState
    from autoscaler.forecasting.demand import DemandForecast, DemandForecaster
    from autoscaler.reports import ReplicaReport
    from autoscaler.settings import AutoscalerSettings
    from autoscaler.sizing.batch_queue_estimator import BatchQueueEstimator, BatchQueuePrediction
    from autoscaler.sizing.budget import Claim, share_budget
    from autoscaler.sizing.estimators import Estimator, FullBatchEstimator, Prediction
    from autoscaler.sizing.fleet_response import FleetResponse
    from autoscaler.sizing.search import least_replicas

__all__ = [
    "Autoscaler",
    "AutoscalerSettings",
    "BatchQueueEstimator",
    "BatchQueuePrediction",
    "Claim",
    "Decision",
    "DemandForecast",
    "DemandForecaster",
    "Estimator",
    "FleetResponse",
    "FleetState",
    "FullBatchEstimator",
    "Prediction",
    "ReplicaReport",
    "least_replicas",
    "share_budget",
]

#: The module of each exported name. Modules are imported on first use: every import of a submodule
#: runs this file, and most processes need only a few of them.
_MODULES = {
    "Autoscaler": "controller",
    "AutoscalerSettings": "settings",
    "BatchQueueEstimator": "sizing.batch_queue_estimator",
    "BatchQueuePrediction": "sizing.batch_queue_estimator",
    "Claim": "sizing.budget",
    "Decision": "decision",
    "DemandForecast": "forecasting.demand",
    "DemandForecaster": "forecasting.demand",
    "Estimator": "sizing.estimators",
    "FleetResponse": "sizing.fleet_response",
    "FleetState": "decision",
    "FullBatchEstimator": "sizing.estimators",
    "Prediction": "sizing.estimators",
    "ReplicaReport": "reports",
    "least_replicas": "sizing.search",
    "share_budget": "sizing.budget",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
