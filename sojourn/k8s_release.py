"""Kustomize overlays of k8s/ for a user's image and config.

A service in a cluster needs tokens: those of the config, or one that is made with a Secret that
holds it.
"""

import filecmp
import math
import re
import shutil
import sysconfig
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from deployments.access.exposure import check_exposure
from deployments.access.tokens import hash_token, make_token
from deployments.config.document import ServiceConfig, load_service_configs
from deployments.config.yaml_file import read_yaml
from deployments.haproxy.request_environment import request_environment
from deployments.haproxy.routing import serve_environment, supervisor_environment
from deployments.local.check import read_traits
from policy.errors import InvalidInputError

#: The manifests, in a checkout or where the wheel has them. Other packages are called k8s, too.
MANIFESTS = Path(__file__).resolve().parents[1] / "k8s"
if not (MANIFESTS / "base/rayservice.yaml").exists():
    MANIFESTS = Path(sysconfig.get_path("data"), "share/sojourn/k8s")
#: The overlays whose replicas have GPUs.
GPU_OVERLAYS = ("gpu", "gpu-ha")
#: Where the image has the program that runs HAProxy for Ray.
_HAPROXY = Path("/usr/local/bin/sojourn-haproxy")
#: Of the Service, the containers, the probes and the policies in k8s/base.
PORT = 8000
_GPU_OVERLAY = Path("overlays/gpu/kustomization.yaml")
_WORKERS = "/spec/rayClusterConfig/workerGroupSpecs/0"
_MAX_PODS = f"{_WORKERS}/maxReplicas"
_RELEASE = Path("overlays/release")
_TOKEN_FILE = "token.yaml"
#: A tag may be moved to another image; a digest names one.
_IMAGE = re.compile(r"([a-z0-9][a-z0-9._:/-]*)@(sha256:[0-9a-f]{64})")
_TOKEN_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")


@dataclass(frozen=True)
class Pod:
    """The resources of a pod of replicas: CPUs and GPUs for Ray, and memory in GiB."""

    cpus: float
    gpus: float
    memory_gib: float


def read_pod(folder: Path, base: str) -> Pod:
    """Return what a pod of replicas has by the manifests in `folder`."""
    path = folder / "base/rayservice.yaml"
    try:
        cluster = yaml.safe_load(path.read_text())["spec"]["rayClusterConfig"]
        group, gpus = cluster["workerGroupSpecs"][0], 0
        resources = group["template"]["spec"]["containers"][0]["resources"]
        if base in GPU_OVERLAYS:
            path = folder / _GPU_OVERLAY
            patch = yaml.safe_load(path.read_text())["patches"][1]["patch"]
            changed = {entry["path"]: entry["value"] for entry in yaml.safe_load(patch)}
            gpus = changed[f"{_WORKERS}/rayStartParams/num-gpus"]
            resources = changed[f"{_WORKERS}/template/spec/containers/0/resources"]
        memory_gib = float(resources["limits"]["memory"].removesuffix("Gi"))
        return Pod(float(group["rayStartParams"]["num-cpus"]), int(gpus), memory_gib)
    except (AttributeError, LookupError, TypeError, ValueError, yaml.YAMLError) as error:
        raise InvalidInputError(
            f"{path}: must say num-cpus, num-gpus and limits.memory (in Gi) where {MANIFESTS} does"
        ) from error


def copy_manifests(folder: Path) -> list[Path]:
    """Copy k8s/ to a folder; return the files that are there and differ, which stay."""
    kept: list[Path] = []

    def copy(source: str, target: str) -> None:
        if not Path(target).exists():
            shutil.copy(source, target)
        elif not filecmp.cmp(source, target, shallow=False):
            kept.append(Path(target))

    if folder.resolve() != MANIFESTS:
        ignored = shutil.ignore_patterns("render.py", "README.md", "release")
        try:
            shutil.copytree(
                MANIFESTS, folder, ignore=ignored, copy_function=copy, dirs_exist_ok=True
            )
        except shutil.Error as error:
            _, _, reason = error.args[0][0]  # of the first file or folder
            raise InvalidInputError(reason) from error
    return sorted(kept)


def environment(config: Path, source: str) -> str:
    """Return Ray's environment for a Serve config, as lines that the kustomization reads."""
    services = load_service_configs(config)
    settings = {
        **serve_environment(),
        **request_environment(services, list(map(read_traits, services)), own={}),
        **supervisor_environment(_HAPROXY),
    }
    variables = "".join(f"{name}={value}\n" for name, value in settings.items())
    return f"# Generated from deployments/ and {source}; edit that.\n{variables}"


def serve_config(
    source: Path,
    gpus_per_replica: float = 0,
    tokens: Sequence[Mapping[str, str]] | None = (),
) -> dict[str, Any]:
    """Return the source's Serve config, adapted to a cluster.

    The service listens on all interfaces of its pod, because clients are outside it; the source's
    address is for a laptop. So it takes the source's tokens and `tokens` only; None leaves its
    access as it is. With GPUs, each replica that does not say how many requests that many.
    """
    config: dict[str, Any] = read_yaml(source)
    config["http_options"] = {**config.get("http_options", {}), "host": "0.0.0.0"}
    for application in config["applications"]:
        for deployment in application["deployments"]:
            if tokens is not None:
                user_config = deployment["user_config"]
                access = user_config.get("access") or {}
                given = access.get("tokens") or []
                user_config["access"] = {**access, "tokens": [*given, *map(dict, tokens)]}
            if gpus_per_replica:
                options = deployment.get("ray_actor_options") or {}
                gpus = options.get("num_gpus", gpus_per_replica)
                deployment["ray_actor_options"] = {**options, "num_gpus": gpus}
    return config


def write_release(
    folder: Path,
    image: str,
    base: str,
    config: Path,
    token: str | None = None,
    *,
    insecure: bool = False,
    store: bool = False,
) -> Path:
    """Write an overlay of `base` with an image into a copy of k8s/; return the overlay's folder.

    Raises
    ------
    InvalidInputError
        The image is not named by its digest, a replica needs more than a pod has, the service
        listens on a port that clients are not sent to, or anybody could use it without `insecure`.
    """
    found = _IMAGE.fullmatch(image)
    if found is None:
        raise InvalidInputError(f"--image: must be REGISTRY/NAME@sha256:DIGEST, not {image!r}")
    content: dict[str, Any] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["../../base" if base == "base" else f"../{base}"],
        "images": [{"name": "sojourn", "newName": found[1], "digest": found[2]}],
    }
    if store:
        content["components"] = ["../../components/store"]
    pod = read_pod(folder, base)
    content.update(_with_config(config, pod, folder, is_open=token is None and not insecure))
    release = folder / _RELEASE
    files, tokens = {}, None
    if token is not None:
        secret, entry = _token(token, release / _TOKEN_FILE)
        files[_TOKEN_FILE], tokens = secret, [entry]
        files[".gitignore"] = f"{_TOKEN_FILE}\n"
        content["resources"].append(_TOKEN_FILE)
    adapted = serve_config(config, pod.gpus, tokens)
    files["serve_config.yaml"] = serve_config_patch(adapted, str(config))
    files["serve_environment.env"] = environment(config, str(config))
    files["kustomization.yaml"] = dump(content, str(config))
    release.mkdir(exist_ok=True)
    for name, text in files.items():
        (release / name).touch(mode=0o600 if name == _TOKEN_FILE else 0o666)
        (release / name).write_text(text)
    return release


def _token(name: str, written: Path) -> tuple[str, dict[str, str]]:
    """Return a Secret with a token, that of the overlay if it has it, and the config's entry."""
    if not _TOKEN_NAME.fullmatch(name):
        raise InvalidInputError(
            f"--token: must be lowercase letters, digits and dashes, not {name!r}"
        )
    secret: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"sojourn-token-{name}"},
        "stringData": {"token": make_token()},
    }
    if written.exists():
        found = yaml.safe_load(written.read_text())
        if found["metadata"] == secret["metadata"]:
            secret = found
    entry = {"name": name, "hash": hash_token(secret["stringData"]["token"])}
    return yaml.safe_dump(secret, sort_keys=False), entry


def _check_fits(service: ServiceConfig, pod: Pod, folder: Path) -> None:
    """Raise an error unless a pod has what a replica needs, and clients are sent to its port."""
    if service.http_port != PORT:
        raise InvalidInputError(
            f"--config: http_options.port must be {PORT}, as in k8s/base, not {service.http_port}; "
            "clients may be given another port in the Service"
        )
    actor = service.actor
    for what, needed, given in (
        ("CPUs", actor.num_cpus, pod.cpus),
        ("GPUs", actor.num_gpus, pod.gpus),
        ("GiB of memory", (actor.memory or 0) / 2**30, pod.memory_gib),
    ):
        if needed > given:
            manifest = _GPU_OVERLAY if pod.gpus and what != "CPUs" else "base/rayservice.yaml"
            remedy = f"lower it in ray_actor_options, or raise it in {folder / manifest}"
            if what == "GPUs" and not given:
                remedy = "take --of gpu or --of gpu-ha"
            raise InvalidInputError(
                f"--config: a replica of {service.application} has {needed:g} {what}, and a pod "
                f"{given:g}: {remedy}"
            )


def _with_config(config: Path, pod: Pod, folder: Path, *, is_open: bool) -> dict[str, Any]:
    """Return what a kustomization needs for a Serve config of its own."""
    services = load_service_configs(config)
    for service in services:
        _check_fits(service, pod, folder)
        if is_open:
            try:
                check_exposure("0.0.0.0", service.user_config.access, insecure=False)
            except InvalidInputError as error:
                raise InvalidInputError(
                    f"{config}: {service.application} has no tokens, so anyone who reaches the "
                    "cluster's network could use it: --token NAME makes one and a Secret that "
                    "holds it, or --insecure renders without"
                ) from error
    # An upgrade starts a quarter of the replicas, rounded up, before it stops old ones.
    pods = sum(math.ceil(service.replicas[1] * 1.25) for service in services)
    return {
        "configMapGenerator": [
            {
                "name": "serve-environment",
                "behavior": "replace",
                "envs": ["serve_environment.env"],
            },
        ],
        "patches": [
            {"path": "serve_config.yaml"},
            {
                "target": {"kind": "RayService", "name": "sojourn"},
                "patch": yaml.safe_dump([{"op": "replace", "path": _MAX_PODS, "value": pods}]),
            },
        ],
    }


def dump(content: dict[str, Any], source: str) -> str:
    header = f"# Generated from {source}; edit that.\n"
    return header + yaml.safe_dump(content, sort_keys=False)


def serve_config_patch(config: dict[str, Any], source: str) -> str:
    """Return a patch with a Serve config, which is a string in a RayService."""
    service = {"apiVersion": "ray.io/v1", "kind": "RayService", "metadata": {"name": "sojourn"}}
    text = textwrap.indent(yaml.safe_dump(config, sort_keys=False), "    ")
    return f"{dump(service, source)}spec:\n  serveConfigV2: |\n{text}"
