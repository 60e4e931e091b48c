"""A service of the models of `fragile_replica`, on a real Ray."""

from typing import Any

from tests.support.processes.services import load_document


def fragile_document(model: str, replicas: int, **limits: object) -> dict[str, Any]:
    """Return the config of a model of `fragile_replica`, in an application of the model's name."""
    content = load_document("digits.yaml")
    application = content["applications"][0]
    application["name"] = model
    application["args"]["model"] |= {
        "name": "fragile",
        "import_path": f"tests.support.processes.fragile_replica:{model}",
        "max_batch_size": 4,
    }
    (deployment,) = application["deployments"]
    del deployment["autoscaling_config"]
    deployment["num_replicas"] = replicas
    deployment["ray_actor_options"] = {"num_cpus": 0.2}
    deployment["user_config"]["sla"]["response_time_ms"] = 10_000
    deployment["user_config"]["limits"] = limits
    return content
