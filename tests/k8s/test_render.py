import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from deployments.access.tokens import hash_token
from deployments.modelstore.wire import SOCKET_VARIABLE
from sojourn.cli import main
from sojourn.commands.store import serve
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

IMAGE = "registry.example:5000/team/sojourn@sha256:" + "0123456789abcdef" * 4


def rendered(folder, *arguments):
    command = ["k8s", "render", "--image", IMAGE, "--out", folder / "k8s", *arguments]
    return main([*map(str, command)])


def test_generated_files_are_up_to_date():
    checked = subprocess.run(
        [sys.executable, ROOT / "k8s/render.py", "--check"], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize(
    ("based_on", "gpus"), [("base", None), ("gpu", None), ("gpu", 0.5), ("gpu-ha", None)]
)
def test_a_release_of_a_users_own_model(based_on, gpus, tmp_path, monkeypatch, capsys):
    project = tmp_path / "project"
    assert main(["init", str(project)]) == 0
    monkeypatch.chdir(project)
    config = project / "serve.yaml"
    written = config.read_text().replace("max_replicas: 2", "max_replicas: 5")
    if gpus is not None:
        written = written.replace("num_cpus: 1 ", f"num_gpus: {gpus}\n          num_cpus: 1 ")
    config.write_text(written)
    assert main(["package", "serve.yaml", "--no-load", "--url", "file:///opt/model"]) == 0
    render = ["--of", based_on, "--config", "dist/serve.yaml", "--token", "web"]
    assert rendered(tmp_path, *render) == 0
    secret = tmp_path / "k8s/overlays/release/token.yaml"
    token = yaml.safe_load(secret.read_text())["stringData"]["token"]
    assert secret.stat().st_mode & 0o077 == 0
    assert secret.name in (secret.parent / ".gitignore").read_text().splitlines()
    capsys.readouterr()
    edited = tmp_path / "k8s/base/networkpolicy.yaml"
    edited.write_text(edited.read_text().replace("kuberay-system", "operators"))
    ours_now = edited.read_text()
    assert rendered(tmp_path, *render) == 0
    assert edited.read_text() == ours_now
    kept, _ = capsys.readouterr().err.splitlines()
    assert kept.endswith(f": {edited}")
    assert yaml.safe_load(secret.read_text())["stringData"]["token"] == token
    release = str(tmp_path / "k8s/overlays/release")
    resources = build(release)
    assert resources["Secret"]["metadata"]["name"] == "sojourn-token-web"
    ours = yaml.safe_load((project / "dist/serve.yaml").read_text())
    (package,) = (project / "dist").glob("*.zip")
    (application,) = ours["applications"]
    assert application["runtime_env"]["working_dir"] == f"file:///opt/model/{package.name}"
    ours["http_options"]["host"] = "0.0.0.0"
    (deployment,) = application["deployments"]
    tokens = [{"name": "web", "hash": hash_token(token)}]
    deployment["user_config"]["access"] = {"tokens": tokens}
    if based_on != "base":
        assert deployment["ray_actor_options"].setdefault("num_gpus", 1) == (gpus or 1)
    assert serve_config_of(release) == ours
    (group,) = cluster_of(release)["workerGroupSpecs"]
    # Ray starts two before it stops others: max_surge_percent is 25.
    assert group["maxReplicas"] == 5 + 2
    (settings,) = (
        one for one in resources.values() if one["metadata"]["name"].startswith("serve-")
    )
    assert settings["data"] == environment_of(config)
    for container in containers_of(release):
        assert container["image"] == IMAGE
        assert container["envFrom"] == [{"configMapRef": {"name": settings["metadata"]["name"]}}]


def test_a_release_of_what_does_not_fit_or_is_not_there_is_refused(tmp_path, capsys):
    project = tmp_path / "project"
    assert main(["init", str(project)]) == 0
    config = project / "serve.yaml"
    written = config.read_text()
    for based_on, old, new, said in (
        ("base", "num_cpus: 1", "num_cpus: 2", "a pod 1: lower it in ray_actor_options, or raise"),
        ("base", "num_cpus: 1", "num_gpus: 1", "has 1 GPUs, and a pod 0: take --of gpu"),
        ("gpu", "num_cpus: 1", "num_gpus: 4", "k8s/overlays/gpu/kustomization.yaml"),
        ("base", "num_cpus: 1", f"memory: {1 << 34}", "16 GiB of memory, and a pod 4:"),
        ("base", "port: 8000", "port: 9000", "http_options.port must be 8000"),
        ("base", "", "", "has no tokens, so anyone who reaches the cluster"),
    ):
        assert old in written
        config.write_text(written.replace(old, new, 1))
        assert rendered(tmp_path, "--of", based_on, "--config", config) == 2
        assert said in capsys.readouterr().err
    assert rendered(tmp_path, "--config", "none.yaml") == 2
    assert "'none.yaml' does not exist" in capsys.readouterr().err
    for tag in ("sojourn:0.1.0", "registry.example/sojourn@sha256:abc"):
        assert rendered(tmp_path, "--config", config, "--image", tag) == 2
        assert "must be REGISTRY/NAME@sha256:DIGEST" in capsys.readouterr().err
    assert not (tmp_path / "k8s/overlays/release").exists()
    manifest = tmp_path / "k8s/base/rayservice.yaml"
    enlarged = manifest.read_text().replace('num-cpus: "1"', 'num-cpus: "2"')
    manifest.write_text(enlarged)
    config.write_text(written.replace("num_cpus: 1", "num_cpus: 2"))
    assert rendered(tmp_path, "--token", "web", "--config", config) == 0
    manifest.write_text(enlarged.replace("memory: 4Gi", "memory: 4G"))
    assert rendered(tmp_path, "--token", "web", "--config", config) == 2
    assert f"{manifest}: must say num-cpus" in capsys.readouterr().err


@pytest.mark.parametrize("based_on", ["base", "gpu"])
def test_a_release_with_a_store_on_each_node(based_on, tmp_path):
    kubernetes = pytest.importorskip("kubernetes_validate")
    config = ROOT / "configs/digits.yaml"
    assert (
        rendered(tmp_path, "--of", based_on, "--token", "web", "--store", "--config", config) == 0
    )
    release = str(tmp_path / "k8s/overlays/release")
    resources = build(release)
    for resource in (resources["DaemonSet"], resources["NetworkPolicy/sojourn-store"]):
        kubernetes.validate(resource, kubernetes.latest_version(), strict=True)
    manager = resources["DaemonSet"]["spec"]["template"]["spec"]
    _, replicas = (pod["spec"] for pod in pods_of(release))
    assert manager["securityContext"]["runAsUser"] == replicas["securityContext"]["runAsUser"]
    (container,) = manager["containers"]
    assert container["image"] == manager["initContainers"][0]["image"] == IMAGE
    words = [*container["command"], *container["args"]]
    assert words[:3] == ["sojourn", "store", "serve"]
    store = serve.make_context("serve", words[3:]).params
    (mount,) = (mount for mount in container["volumeMounts"] if mount["name"] == "store")
    (folder,) = (
        volume["hostPath"]["path"] for volume in manager["volumes"] if "hostPath" in volume
    )
    on_node = folder / store["socket_path"].relative_to(mount["mountPath"])
    (worker,) = replicas["containers"]
    (seen,) = (mount for mount in worker["volumeMounts"] if mount["name"] == "store")
    (shown,) = (v["hostPath"]["path"] for v in replicas["volumes"] if v["name"] == "store")
    assert seen["readOnly"] is True
    (variable,) = worker["env"]
    assert Path(variable["value"]) == seen["mountPath"] / on_node.relative_to(shown)
    assert variable["name"] == SOCKET_VARIABLE
    limit_gib = float(container["resources"]["limits"]["memory"].removesuffix("Gi"))
    assert store["host_bytes"] <= (limit_gib - 1) * 2**30
