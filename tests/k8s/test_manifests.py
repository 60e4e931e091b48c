import json
import os
import re
import subprocess
import tomllib

import pytest
import yaml

from sojourn.k8s_release import PORT, read_pod
from tests.support.manifests import (
    NEEDS_KUBECTL,
    build,
    cluster_of,
    containers_of,
    environment_of,
    pods_of,
    serve_config_of,
)
from tests.support.readme import ROOT

pytestmark = [pytest.mark.slow, NEEDS_KUBECTL]


HIGHLY_AVAILABLE = "k8s/overlays/gpu-ha"
DEMO = "k8s/overlays/cpu-demo"


@pytest.fixture(params=["k8s/base", "k8s/overlays/gpu", HIGHLY_AVAILABLE, DEMO])
def kustomization(request):
    return str(request.param)


def source_of(kustomization):
    return ROOT / "configs" / ("emulated-p4.yaml" if kustomization == DEMO else "digits.yaml")


def test_everything_else_is_valid_under_kubernetes_schemas(kustomization):
    kubernetes = pytest.importorskip("kubernetes_validate")
    version = kubernetes.latest_version()
    resources = [r for r in build(kustomization).values() if r["kind"] != "RayService"]
    pods = [
        {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": {"name": "pod", **pod["metadata"]}}
        for pod in pods_of(kustomization)
    ]
    for resource in (*resources, *pods):
        kubernetes.validate(resource, version, strict=True)
    misspelled = {**pods[0], "spec": {**pods[0]["spec"], "automountToken": False}}
    with pytest.raises(kubernetes.ValidationError, match="automountToken"):
        kubernetes.validate(misspelled, version, strict=True)


def test_grafana_gets_every_dashboard():
    kubernetes = pytest.importorskip("kubernetes_validate")
    boards = {
        kind: resource for kind, resource in build("k8s/monitoring").items() if "ConfigMap" in kind
    }
    shipped = {path.stem: path for path in (ROOT / "k8s/monitoring/dashboards").glob("*.json")}
    assert boards.keys() == {f"ConfigMap/sojourn-dashboard-{name}" for name in shipped}
    for name, path in shipped.items():
        resource = boards[f"ConfigMap/sojourn-dashboard-{name}"]
        kubernetes.validate(resource, kubernetes.latest_version(), strict=True)
        assert resource["metadata"]["labels"]["grafana_dashboard"] == "1"
        # Grafana names the file of a board by the key, in one folder for all.
        ((file, content),) = resource["data"].items()
        assert file == f"sojourn-{name}.json"
        assert json.loads(content) == json.loads(path.read_text())


def test_prometheus_finds_rays_metrics_on_every_pod():
    resources = build("k8s/monitoring")
    monitor = resources["PodMonitor"]["spec"]
    label = monitor["selector"]["matchLabels"].items()
    (endpoint,) = monitor["podMetricsEndpoints"]
    for pod in pods_of("k8s/base"):
        assert label <= pod["metadata"]["labels"].items()
        ports = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
        assert endpoint["port"] in ports
    # An alert on another metric could not fire.
    assert "sojourn_store" not in str(resources["PrometheusRule"])
    for kind in ("PodMonitor", "PrometheusRule"):
        assert resources[kind]["metadata"]["labels"]["release"] == "kube-prometheus-stack"


@pytest.mark.parametrize("of", ["k8s/base", DEMO])
def test_the_serve_config_differs_from_the_source_in_the_address_and_answers_nobody(of):
    """The base once answered everybody; the demo, on a laptop, answers its namespace."""
    ours = yaml.safe_load(source_of(of).read_text())
    ours["http_options"]["host"] = "0.0.0.0"
    if of != DEMO:
        user_config = ours["applications"][0]["deployments"][0]["user_config"]
        user_config["access"] = {"tokens": []}
    assert serve_config_of(of) == ours


@pytest.mark.parametrize("of", ["k8s/base", "k8s/overlays/gpu", HIGHLY_AVAILABLE])
def test_what_configs_are_checked_against_is_what_the_pods_have(of):
    pod = read_pod(ROOT / "k8s", of.rpartition("/")[2])
    (group,) = cluster_of(of)["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    assert group["rayStartParams"]["num-cpus"] == f"{pod.cpus:g}"
    assert group["rayStartParams"].get("num-gpus", "0") == f"{pod.gpus:g}"
    assert container["resources"]["limits"].get("nvidia.com/gpu", "0") == f"{pod.gpus:g}"
    assert container["resources"]["limits"]["memory"] == f"{pod.memory_gib:g}Gi"
    (application,) = serve_config_of(of)["applications"]
    scaling = application["deployments"][0]["autoscaling_config"]
    assert group["maxReplicas"] == scaling["max_replicas"] + 1  # that of an upgrade
    (port,) = (port for port in container["ports"] if port["name"] == "serve")
    assert port["containerPort"] == PORT


def test_every_ray_container_has_the_serve_environment_and_the_projects_versions(kustomization):
    environment = build(kustomization)["ConfigMap"]
    assert environment["data"] == environment_of(source_of(kustomization))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for container in containers_of(kustomization):
        source = {"configMapRef": {"name": environment["metadata"]["name"]}}
        assert container["envFrom"] == [source]
        assert container["image"].startswith(f"sojourn:{project['version']}")
    ray = cluster_of(kustomization)["rayVersion"]
    assert f"\nray=={ray}\n" in (ROOT / "requirements.lock").read_text()


def test_pods_run_unprivileged_and_write_only_to_volumes(kustomization):
    for pod in (pod["spec"] for pod in pods_of(kustomization)):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        writable = {
            volume["name"] for volume in pod["volumes"] if "sizeLimit" in volume.get("emptyDir", {})
        }
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert security["readOnlyRootFilesystem"] is True
            mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
            assert mounted.keys() == {"/tmp", "/home/ray"}
            assert set(mounted.values()) <= writable
    autoscaler = cluster_of(kustomization)["autoscalerOptions"]
    assert autoscaler["securityContext"]["readOnlyRootFilesystem"] is True


def test_only_rays_autoscaler_may_speak_to_kubernetes(kustomization):
    head, workers = pods_of(kustomization)
    assert all(pod["spec"]["automountServiceAccountToken"] is False for pod in (head, workers))
    holders = {
        volume["name"]
        for pod in (head, workers)
        for volume in pod["spec"]["volumes"]
        for source in volume.get("projected", {}).get("sources", ())
        if "serviceAccountToken" in source
    }
    assert holders == {"kubernetes-api"}
    for container in containers_of(kustomization):
        assert not holders & {mount["name"] for mount in container["volumeMounts"]}
    mounts = cluster_of(kustomization)["autoscalerOptions"]["volumeMounts"]
    (path,) = (mount["mountPath"] for mount in mounts if mount["name"] in holders)
    assert path == "/var/run/secrets/kubernetes.io/serviceaccount"
    assert holders <= {volume["name"] for volume in head["spec"]["volumes"]}


def drain_script_of(kustomization):
    _, workers = pods_of(kustomization)
    (container,) = workers["spec"]["containers"]
    return str(container["lifecycle"]["preStop"]["exec"]["command"][-1])


def test_a_worker_has_time_to_drain(kustomization):
    script = drain_script_of(kustomization)
    (deadline_s,) = map(int, re.findall(r"--deadline-remaining-seconds (\d+)", script))
    (waits_s,) = map(int, re.findall(r"^left=(\d+)$", script, re.MULTILINE))
    # Serve ends a replica that has not finished by then, so the pod must not go before.
    source = (ROOT / "deployments/serving/replica.py").read_text()  # importing Ray is slow
    (replica_s,) = map(int, re.findall(r"graceful_shutdown_timeout_s=(\d+)", source))
    _, workers = pods_of(kustomization)
    assert replica_s < deadline_s <= waits_s < workers["spec"]["terminationGracePeriodSeconds"]


@pytest.mark.parametrize(("failures", "asked"), [(0, 1), (2, 3), (99, 7)])
def test_a_node_whose_draining_fails_is_asked_again_and_waited_for(tmp_path, failures, asked):
    """The pod once ended at once if the head was away, and with it the requests of its replica."""
    calls = tmp_path / "calls"
    programs = {
        "ray": f'echo ray >> {calls}; [ "$(grep -c ray {calls})" -gt {failures} ]',
        "sleep": f'echo "sleep $1" >> {calls}',
        "grep": f"""case "$1" in -qx) [ "$(/bin/grep -c 'sleep 1' {calls})" -lt 3 ];;
            *) exec /bin/grep "$@";; esac""",
    }
    for name, body in programs.items():
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
    script = drain_script_of("k8s/base").replace("/proc/1/fd/2", "/dev/null")
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert subprocess.run(["sh", "-c", script], env=path).returncode == 0
    lines = calls.read_text().splitlines()
    assert lines.count("ray") == asked
    assert lines.count("sleep 1") == 3


def test_the_head_and_a_replica_are_kept(kustomization):
    head, workers = pods_of(kustomization)
    for name, pod in (("sojourn-head", head), ("sojourn-replicas", workers)):
        budget = build(kustomization)[f"PodDisruptionBudget/{name}"]["spec"]
        # Kubernetes knows no controller of these pods whose scale a percentage could be taken of.
        assert budget["minAvailable"] == 1
        assert "maxUnavailable" not in budget
        mine = budget["selector"]["matchLabels"].items()
        matches = [mine <= other["metadata"]["labels"].items() for other in (head, workers)]
        assert matches == [other is pod for other in (head, workers)]


def test_network_policy_lets_nobody_in_from_anywhere():
    policy = build("k8s/base")["NetworkPolicy/sojourn"]["spec"]
    label = policy["podSelector"]["matchLabels"]
    for pod in pods_of("k8s/base"):
        assert label.items() <= pod["metadata"]["labels"].items()
    assert "Ingress" in policy["policyTypes"]
    assert all(rule["from"] for rule in policy["ingress"])
    _, names = policy["egress"]
    assert {"ipBlock": {"cidr": "169.254.20.10/32"}} in names["to"]
    assert {port["port"] for port in names["ports"]} == {53, 5353}
    # HAProxy's metrics and stats, and the replicas' own ports, are for the cluster's pods only.
    for rule in policy["ingress"]:
        if rule["from"] == [{"podSelector": {"matchLabels": label}}]:
            continue
        opened = [port["port"] for port in rule["ports"]]
        assert not {9101, 8404} & set(opened)
        assert not any(30000 <= port <= 41000 for port in opened)
        assert all("endPort" not in port for port in rule["ports"])


def test_ray_keeps_its_tables_in_the_redis_of_the_overlay():
    resources = build(HIGHLY_AVAILABLE)
    options = cluster_of(HIGHLY_AVAILABLE)["gcsFaultToleranceOptions"]
    service, server = resources["Service"], resources["StatefulSet"]
    (port,) = service["spec"]["ports"]
    assert options["redisAddress"] == f"{service['metadata']['name']}:{port['port']}"
    pod = server["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    (container,) = pod["spec"]["containers"]
    (opened,) = container["ports"]
    assert port["targetPort"] == opened["name"]
    # Both have the password from the same secret, which is nowhere in the manifests.
    (variable,) = container["env"]
    assert variable["valueFrom"] == options["redisPassword"]["valueFrom"]
    assert "Secret" not in {resource["kind"] for resource in resources.values()}
    # Every process of a node can read the arguments of the others.
    (script,) = container["args"]
    assert container["command"] == ["sh", "-c"]
    assert f'requirepass "${variable["name"]}"' in script.partition("<<EOF")[2]
    # The tables outlive the pod.
    (claim,) = server["spec"]["volumeClaimTemplates"]
    (mount,) = container["volumeMounts"]
    assert mount == {"name": claim["metadata"]["name"], "mountPath": "/data"}
    assert "appendonly yes" in script
