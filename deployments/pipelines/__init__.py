"""Pipelines: stages with their own workers, batches and CPUs, under one end-to-end SLA.

The user's side is `steps` and `pipeline`. Decisions are made by `pipeline_core` and `stage_core`,
which know no clock; `workers` runs the user's code. docs/pipelines.md explains all of it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deployments.pipelines.errors import StageError
    from deployments.pipelines.pipeline import Pipeline
    from deployments.pipelines.steps import Each, Ensemble, Stage, Switch

__all__ = ["Each", "Ensemble", "Pipeline", "Stage", "StageError", "Switch"]

_MODULES = {"StageError": "errors", "Pipeline": "pipeline"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: a worker process needs few of the modules."""
    if name not in __all__:
        raise AttributeError(f"module 'deployments.pipelines' has no attribute {name!r}")
    module = f"deployments.pipelines.{_MODULES.get(name, 'steps')}"
    return getattr(importlib.import_module(module), name)
