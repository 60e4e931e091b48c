"""A small pipeline as a config, and as a service."""

import copy
from typing import Any

import numpy as np

from deployments.pipelines.serving.config import parse_args, parse_user_config
from deployments.pipelines.serving.service import PipelineService

#: x, three numbers, is doubled twice: by a model, and by a function.
CONFIG: dict[str, Any] = {
    "http_options": {"host": "127.0.0.1", "port": 8000},
    "applications": [
        {
            "name": "twice",
            "import_path": "deployments.pipelines.serving.application:build",
            "args": {
                "pipeline": {
                    "name": "twice",
                    "inputs": [{"name": "x", "datatype": "FP32", "shape": [3]}],
                    "outputs": [{"name": "y", "datatype": "FP32", "shape": [3]}],
                    "steps": [
                        {
                            "stage": {
                                "code": "tests.support.pipelines.stages:Doubler",
                                "place": "thread",
                                "batch_size": 4,
                                "profile": {"latency_ms": [1.0, 1.1, 1.2, 1.3]},
                            }
                        },
                        {
                            "stage": {
                                "code": "tests.support.pipelines.configs:again",
                                "place": "loop",
                                "profile": {"latency_ms": [0.1]},
                                "expert": {"cost": 2.5},
                            }
                        },
                    ],
                }
            },
            "deployments": [
                {
                    "name": "PipelineReplica",
                    "user_config": {"sla": {"response_time_ms": 5000, "percentile": 99}},
                }
            ],
        }
    ],
}


def again(item):
    if item["y"][0] < 0:
        raise ValueError("the secret reason")
    return 2 * item["y"]


def example():
    return {"x": np.ones(3), "y": np.ones(3)}


def too_large(item):
    return 300


def no_array(item):
    """Return what numpy cannot read, as of a tensor that requires a gradient."""

    class Tensor:
        def __array__(self, *args, **kwargs):
            raise RuntimeError("it requires a gradient")

    return Tensor()


def text(item):
    return "text"


def config(**changes):
    document = copy.deepcopy(CONFIG)
    document["applications"][0]["args"]["pipeline"].update(changes)
    return document


def make_service(user_config=None, **changes):
    """Return the service of `config` with these changes, not started."""
    args = config(**changes)["applications"][0]["args"]
    return PipelineService(parse_args(args), parse_user_config(user_config))
