"""The manifests build, are valid under KubeRay's schema, and agree with the project."""

import gzip
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from deployments.routing import serve_environment, supervisor_environment

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = ROOT.parent / "shared/reference/ray.io_rayservices.crd.yaml.gz"
KUSTOMIZATIONS = ("k8s/base", "k8s/overlays/gpu")

needs_kubectl = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="kubectl is not installed"
)
needs_schema = pytest.mark.skipif(
    not SCHEMA.exists(), reason=f"KubeRay's schema is missing: {SCHEMA}"
)


@cache
def build(kustomization: str) -> dict[str, dict[str, Any]]:
    """Return the resources of a kustomization, by kind."""
    built = subprocess.run(
        ["kubectl", "kustomize", str(ROOT / kustomization)], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    resources = [resource for resource in yaml.safe_load_all(built.stdout) if resource]
    by_kind = {resource["kind"]: resource for resource in resources}
    assert len(by_kind) == len(resources)
    return by_kind


def cluster_of(kustomization: str) -> dict[str, Any]:
    cluster: dict[str, Any] = build(kustomization)["RayService"]["spec"]["rayClusterConfig"]
    return cluster


def pods_of(kustomization: str) -> list[dict[str, Any]]:
    cluster = cluster_of(kustomization)
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"] for group in groups]


def serve_config_of(kustomization: str) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(
        build(kustomization)["RayService"]["spec"]["serveConfigV2"]
    )
    return config


def strict(schema: Any) -> Any:
    """Return a Kubernetes schema as JSON Schema that forbids unknown fields, as `kubectl` does."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    read = {
        key: {name: strict(field) for name, field in value.items()}
        if key == "properties"
        else strict(value)
        for key, value in schema.items()
        if not key.startswith("x-kubernetes-")
    }
    if schema.get("x-kubernetes-int-or-string"):
        read = {"type": ["integer", "string"]}
    elif "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        read.setdefault("additionalProperties", False)
    return read


@cache
def rayservice_schema() -> Any:
    definition = yaml.load(gzip.decompress(SCHEMA.read_bytes()), Loader=yaml.CSafeLoader)
    (version,) = (v for v in definition["spec"]["versions"] if v["name"] == "v1")
    schema = version["schema"]["openAPIV3Schema"]
    # The API server checks metadata by its own rules.
    schema["properties"]["metadata"] = {"type": "object"}
    return strict(schema)


def test_generated_files_are_up_to_date():
    checked = subprocess.run(
        [sys.executable, ROOT / "k8s/render.py", "--check"], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stderr


@needs_kubectl
@needs_schema
@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_the_rayservice_is_valid_under_kuberays_schema(kustomization):
    jsonschema.validate(build(kustomization)["RayService"], rayservice_schema())


@needs_kubectl
@needs_schema
def test_the_schema_check_finds_a_misspelled_field():
    wrong = yaml.safe_load(yaml.safe_dump(build("k8s/base")["RayService"]))
    wrong["spec"]["rayClusterConfig"]["headGroupSpecs"] = {}
    with pytest.raises(jsonschema.ValidationError, match="headGroupSpecs"):
        jsonschema.validate(wrong, rayservice_schema())


@needs_kubectl
def test_the_serve_config_differs_from_the_source_only_in_the_address():
    ours = yaml.safe_load((ROOT / "configs/digits.yaml").read_text())
    ours["http_options"]["host"] = "0.0.0.0"
    assert serve_config_of("k8s/base") == ours


@needs_kubectl
def test_gpu_overlay_asks_for_as_many_gpus_as_its_pods_have():
    for application in serve_config_of("k8s/overlays/gpu")["applications"]:
        for deployment in application["deployments"]:
            assert deployment["ray_actor_options"].pop("num_gpus") == 1
    (group,) = cluster_of("k8s/overlays/gpu")["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert group["rayStartParams"]["num-gpus"] == "1"


@needs_kubectl
@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_every_ray_container_has_the_serve_environment(kustomization):
    environment = build(kustomization)["ConfigMap"]
    supervisor = Path("/usr/local/bin/sojourn-haproxy")
    assert environment["data"] == {**serve_environment(), **supervisor_environment(supervisor)}
    for pod in pods_of(kustomization):
        for container in pod["spec"]["containers"]:
            assert container["envFrom"] == [
                {"configMapRef": {"name": environment["metadata"]["name"]}}
            ]


@needs_kubectl
@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_versions_are_the_projects(kustomization):
    locked = dict(
        line.split("==")
        for line in (ROOT / "requirements.lock").read_text().splitlines()
        if "==" in line and not line.startswith("#")
    )
    assert cluster_of(kustomization)["rayVersion"] == locked["ray"]
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for pod in pods_of(kustomization):
        for container in pod["spec"]["containers"]:
            assert container["image"].startswith(f"sojourn:{version}")


@needs_kubectl
@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_workers_have_room_for_every_replica(kustomization):
    (group,) = cluster_of(kustomization)["workerGroupSpecs"]
    needed = sum(
        deployment["autoscaling_config"]["max_replicas"]
        * deployment["ray_actor_options"]["num_cpus"]
        for application in serve_config_of(kustomization)["applications"]
        for deployment in application["deployments"]
    )
    assert group["maxReplicas"] * int(group["rayStartParams"]["num-cpus"]) >= needed


@needs_kubectl
@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_pods_run_unprivileged(kustomization):
    for pod in pods_of(kustomization):
        security = pod["spec"]["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] > 0
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["spec"]["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@needs_kubectl
@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_probed_ports_exist(kustomization):
    for pod in pods_of(kustomization):
        for container in pod["spec"]["containers"]:
            named = {port["name"] for port in container["ports"]}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                port = container[probe]["httpGet"]["port"]
                assert port in named or port == 52365  # Ray's dashboard agent


@needs_kubectl
def test_network_policy_opens_only_the_service_to_everyone():
    policy = build("k8s/base")["NetworkPolicy"]["spec"]
    label = policy["podSelector"]["matchLabels"]
    for pod in pods_of("k8s/base"):
        assert label.items() <= pod["metadata"]["labels"].items()
    assert "Ingress" in policy["policyTypes"]
    http_port = serve_config_of("k8s/base")["http_options"]["port"]
    to_anyone = [rule["ports"] for rule in policy["ingress"] if "from" not in rule]
    assert to_anyone == [[{"port": http_port, "protocol": "TCP"}]]
    # HAProxy's metrics and stats, and the replicas' own ports, are for the cluster's pods only.
    for rule in policy["ingress"]:
        if rule.get("from") == [{"podSelector": {"matchLabels": label}}]:
            continue
        opened = [port["port"] for port in rule["ports"]]
        assert not {9101, 8404} & set(opened)
        assert not any(30000 <= port <= 41000 for port in opened)
        assert all("endPort" not in port for port in rule["ports"])
