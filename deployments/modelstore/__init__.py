"""One copy of a model's weights per machine, shared by all of its processes.

>>> from deployments import modelstore                                 # doctest: +SKIP
>>> state = modelstore.load_state_dict("resnet50@2")       # doctest: +SKIP
>>> network.load_state_dict(state, assign=True)            # doctest: +SKIP

Names are imported on first use: the manager needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deployments.modelstore.client import open_model
    from deployments.modelstore.errors import StoreError
    from deployments.modelstore.manager.manager import Manager
    from deployments.modelstore.manager.settings import ManagerSettings
    from deployments.modelstore.tensors import attach, load_state_dict

__all__ = ["Manager", "ManagerSettings", "StoreError", "attach", "load_state_dict", "open_model"]

_MODULES = {
    "Manager": "deployments.modelstore.manager.manager",
    "ManagerSettings": "deployments.modelstore.manager.settings",
    "StoreError": "deployments.modelstore.errors",
    "attach": "deployments.modelstore.tensors",
    "load_state_dict": "deployments.modelstore.tensors",
    "open_model": "deployments.modelstore.client",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
