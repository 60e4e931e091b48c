"""Sojourn's own config for the comparison, as `sojourn serve` takes it."""

from typing import Any

from benchmarks.peers.models import HOSTED, MAX_BATCH_SIZE

PERCENTILE = 99.0


def user_config(name: str) -> dict[str, Any]:
    """Return how a model is batched.

    The emulated device aims at its SLA. The other models are measured for throughput, so they
    answer at once and refuse nobody.
    """
    sla = {"response_time_ms": HOSTED[name].response_time_ms, "percentile": PERCENTILE}
    if name == "emulated":
        return {"sla": sla}
    return {"sla": sla, "policy": {"objective": "weights"}, "limits": {"late": "serve"}}


def document(name: str, replicas: int = 1) -> dict[str, Any]:
    """Return the config of a model with a fixed number of replicas."""
    hosted = HOSTED[name]
    model = {
        "name": name,
        "import_path": hosted.import_path,
        "options": dict(hosted.options),
        "device": "cpu",
        "max_batch_size": MAX_BATCH_SIZE,
    }
    replica = {
        "name": "Replica",
        "num_replicas": replicas,
        "ray_actor_options": {"num_cpus": 1},
        "user_config": user_config(name),
    }
    application = {
        "name": name,
        "route_prefix": "/",
        "import_path": "deployments.application:build",
        "args": {"model": model},
        "deployments": [replica],
    }
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": "127.0.0.1", "port": 8200},
        "applications": [application],
    }
