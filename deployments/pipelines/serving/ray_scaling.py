"""The autoscaling policy of a pipeline's application, in Ray Serve's terms.

The replicas of the pipeline report as those of a service do. Each also reports the replicas of each
stage that its load needs, and this policy adds them up.
"""

import logging
import math
from collections.abc import Mapping
from typing import Any

from autoscaler.ray_adapter import SojournAutoscalingPolicy

logger = logging.getLogger("ray.serve")

#: Names of the reports end with the name of the stage.
NEED = "replicas_needed/"
#: A need may exceed a whole number by this rounding error, because it is a sum of fractions.
_ROUNDING = 1e-6
_policies: dict[Any, SojournAutoscalingPolicy] = {}


def scale(contexts: Mapping[Any, Any]) -> tuple[dict[Any, int], dict[Any, dict[str, Any]]]:
    """Return the replicas of each deployment by DeploymentID, and no policy state."""
    try:
        needs = _needs(contexts)
    except Exception:
        # An exception would keep Serve's controller from scaling the other applications.
        logger.exception("the pipeline's autoscaler failed; replicas are kept as they are")
        needs = {}
    decisions = {}
    for deployment, context in contexts.items():
        decisions[deployment] = context.target_num_replicas
        if deployment.name in needs:
            decisions[deployment] = max(1, math.ceil(needs[deployment.name] - _ROUNDING))
        elif "offered_total" in (context.raw_metrics or {}):
            policy = _policies.setdefault(deployment, SojournAutoscalingPolicy())
            decisions[deployment], _ = policy(context)
    return decisions, {}


def _needs(contexts: Mapping[Any, Any]) -> dict[str, float]:
    needs: dict[str, float] = {}
    for context in contexts.values():
        for name, by_replica in (context.raw_metrics or {}).items():
            if not name.startswith(NEED):
                continue
            latest = [series[-1].value for series in by_replica.values() if series]
            if latest:
                needs[name.removeprefix(NEED)] = sum(latest)
    return needs
