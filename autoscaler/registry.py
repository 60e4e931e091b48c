"""The autoscalers of this process, one per deployment, with their history."""

from autoscaler.controller import Autoscaler

_autoscalers: dict[str, Autoscaler] = {}


def autoscaler_of(deployment: str) -> Autoscaler:
    """Give the autoscaler of `deployment`, a new one if it has none yet."""
    return _autoscalers.setdefault(deployment, Autoscaler())
