"""The Kubernetes manifests as `kubectl` builds them."""

import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.config.document import load_service_configs
from deployments.haproxy.request_environment import request_environment
from deployments.haproxy.routing import serve_environment, supervisor_environment
from deployments.local.check import read_traits
from tests.support.readme import ROOT

NEEDS_KUBECTL = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="kubectl is not installed"
)


@cache
def build(kustomization: str) -> dict[str, dict[str, Any]]:
    """Return the resources of a kustomization, by kind; those of one kind, by kind and name."""
    built = subprocess.run(
        ["kubectl", "kustomize", str(ROOT / kustomization)], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    resources = [resource for resource in yaml.safe_load_all(built.stdout) if resource]
    kinds = [resource["kind"] for resource in resources]
    found = {
        kind if kinds.count(kind) == 1 else f"{kind}/{resource['metadata']['name']}": resource
        for kind, resource in zip(kinds, resources, strict=True)
    }
    assert len(found) == len(resources)
    return found


def cluster_of(kustomization: str) -> dict[str, Any]:
    return build(kustomization)["RayService"]["spec"]["rayClusterConfig"]


def pods_of(kustomization: str) -> list[dict[str, Any]]:
    """Return the templates of the head and of the workers."""
    cluster = cluster_of(kustomization)
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"] for group in groups]


def containers_of(kustomization: str) -> list[dict[str, Any]]:
    return [one for pod in pods_of(kustomization) for one in pod["spec"]["containers"]]


def serve_config_of(kustomization: str) -> Any:
    return yaml.safe_load(build(kustomization)["RayService"]["spec"]["serveConfigV2"])


def environment_of(config: Path) -> dict[str, str]:
    """Return Ray's environment for a config in a cluster."""
    services = load_service_configs(config)
    return {
        **serve_environment(),
        **request_environment(services, list(map(read_traits, services)), own={}),
        **supervisor_environment(Path("/usr/local/bin/sojourn-haproxy")),
    }
