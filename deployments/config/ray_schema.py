"""Check a config file by Ray Serve's own schema; importing that takes most of a second."""

import copy
import warnings
from collections.abc import Mapping
from typing import Any

from deployments.config.validation import Place, validate

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # from pydantic, through Ray
    from ray.serve.config import AutoscalingConfig
    from ray.serve.schema import ServeDeploySchema


def check_schema(document: Mapping[str, Any]) -> None:
    """Check by Ray's schema a file whose structure `find_applications` has checked.

    `ConfigError` has the first error.
    """
    without = copy.deepcopy(dict(document))
    scalings: dict[Place, Any] = {}
    for index, application in enumerate(without["applications"]):
        for number, deployment in enumerate(application.get("deployments") or []):
            # Ray imports what these two name, which may be modules of the replicas alone.
            deployment.pop("request_router_config", None)
            if scaling := deployment.get("autoscaling_config"):
                scaling.pop("policy", None)
                place: Place = ("applications", index, "deployments", number, "autoscaling_config")
                scalings[place] = scaling
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # metrics_interval_s: docs/design.md says why it stays
        validate(ServeDeploySchema, without)
        for place, scaling in scalings.items():
            validate(AutoscalingConfig, scaling, *place)
