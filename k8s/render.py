#!/usr/bin/env python3
"""Generate the files in k8s/ that repeat other sources: Serve config, environment, alerts.

Run ``k8s/render.py`` after a change of configs/digits.yaml, configs/emulated-p4.yaml,
deployments/haproxy/routing.py or k8s/monitoring/rules.yaml.
``k8s/render.py --check`` fails if a generated file is out of date. ``k8s/render.py --image
REGISTRY/sojourn@sha256:…`` writes the overlay k8s/overlays/release, with that image, and with
``--config dist/my.yaml`` the Serve config that `sojourn package` has written.

A service in a cluster needs tokens: those of the config, or one that ``--token NAME`` makes, with a
Secret that holds it. What is rendered without an image answers nobody until it has tokens, but for
the demo.
"""

import argparse
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deployments.config.document import ServiceConfig

ROOT = Path(__file__).resolve().parent.parent
SOURCE = Path("configs/digits.yaml")
DEMO = Path("configs/emulated-p4.yaml")
RULES = Path("k8s/monitoring/rules.yaml")
#: The overlays whose replicas have GPUs.
GPU_OVERLAYS = ("gpu", "gpu-ha")
#: Where the image has the program that runs HAProxy for Ray.
HAPROXY = Path("/usr/local/bin/sojourn-haproxy")
#: Of the Service, the containers, the probes and the policies in k8s/base.
PORT = 8000
MAX_PODS = "/spec/rayClusterConfig/workerGroupSpecs/0/maxReplicas"
RELEASE = Path("k8s/overlays/release")
TOKEN_FILE = "token.yaml"
#: A tag may be moved to another image; a digest names one.
_IMAGE = re.compile(r"([a-z0-9][a-z0-9._:/-]*)@(sha256:[0-9a-f]{64})")
_TOKEN_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")


@dataclass(frozen=True)
class Pod:
    """The resources of a pod of replicas: CPUs and GPUs for Ray, and memory in GiB."""

    cpus: float
    gpus: float
    memory_gib: float


#: As k8s/base/rayservice.yaml says, and k8s/overlays/gpu/kustomization.yaml.
CPU_POD, GPU_POD = Pod(1, 0, 4), Pod(1, 1, 16)


def render() -> dict[Path, str]:
    """Return the content of each generated file, by its path from the root."""
    return {
        Path("k8s/base/serve_config.yaml"): _dump(serve_config()),
        Path("k8s/base/serve_environment.env"): environment(ROOT / SOURCE, str(SOURCE)),
        Path("k8s/overlays/gpu/serve_config.yaml"): _dump(serve_config(GPU_POD.gpus)),
        Path("k8s/overlays/cpu-demo/serve_config.yaml"): _dump(
            serve_config(source=ROOT / DEMO, tokens=None), str(DEMO)
        ),
        Path("k8s/overlays/cpu-demo/serve_environment.env"): environment(ROOT / DEMO, str(DEMO)),
        Path("k8s/monitoring/prometheusrule.yaml"): prometheus_rule(),
    }


def prometheus_rule() -> str:
    """Return the rules of Prometheus as its operator takes them."""
    content = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "sojourn"},
        "spec": yaml.safe_load((ROOT / RULES).read_text()),
    }
    header = f"# Written by k8s/render.py from {RULES}; edit that.\n"
    return header + yaml.safe_dump(content, sort_keys=False, width=120)


def environment(config: Path, source: str) -> str:
    """Return Ray's environment for a Serve config, as lines that the kustomization reads."""
    from deployments.config.document import load_service_configs
    from deployments.haproxy.request_environment import request_environment
    from deployments.haproxy.routing import serve_environment, supervisor_environment
    from deployments.local.check import read_traits

    services = load_service_configs(config)
    settings = {
        **serve_environment(),
        **request_environment(services, list(map(read_traits, services)), own={}),
        **supervisor_environment(HAPROXY),
    }
    variables = "".join(f"{name}={value}\n" for name, value in settings.items())
    return f"# Written by k8s/render.py from deployments/ and {source}; edit that.\n{variables}"


def serve_config(
    gpus_per_replica: float = 0,
    source: Path = ROOT / SOURCE,
    tokens: "Sequence[Mapping[str, str]] | None" = (),
) -> dict[str, Any]:
    """Return the source's Serve config, adapted to a cluster.

    The service listens on all interfaces of its pod, because clients are outside it; the source's
    address is for a laptop. So it takes the source's tokens and `tokens` only; None leaves its
    access as it is. With GPUs, each replica that does not say how many requests that many.
    """
    from deployments.config.yaml_file import read_yaml

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


def release(
    image: str,
    base: str,
    config: Path,
    token: str | None = None,
    *,
    insecure: bool = False,
    store: bool = False,
) -> dict[Path, str]:
    """Return the files of an overlay of `base` with an image, by their paths from the root.

    Raises
    ------
    ValueError
        The image is not named by its digest, a replica needs more than a pod has, the service
        listens where nobody is sent, or anybody could use it and that is not said (`insecure`).
    """
    found = _IMAGE.fullmatch(image)
    if found is None:
        raise ValueError(f"--image: must be REGISTRY/NAME@sha256:DIGEST, not {image!r}")
    content: dict[str, Any] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["../../base" if base == "base" else f"../{base}"],
        "images": [{"name": "sojourn", "newName": found[1], "digest": found[2]}],
    }
    if store:
        content["components"] = ["../../components/store"]
    pod = GPU_POD if base in GPU_OVERLAYS else CPU_POD
    content.update(_with_config(config, pod, is_open=token is None and not insecure))
    files, tokens = {}, None
    if token is not None:
        secret, entry = _token(token)
        files[TOKEN_FILE], tokens = secret, [entry]
        content["resources"].append(TOKEN_FILE)
    files["serve_config.yaml"] = _dump(serve_config(pod.gpus, config, tokens), str(config))
    files["serve_environment.env"] = environment(config, str(config))
    written = "# Written by k8s/render.py --image.\n" + yaml.safe_dump(content, sort_keys=False)
    files["kustomization.yaml"] = written
    return {RELEASE / name: text for name, text in files.items()}


def _token(name: str) -> tuple[str, dict[str, str]]:
    """Return a Secret with a token, that of the overlay if it has it, and the config's entry."""
    from deployments.access.tokens import hash_token, make_token

    if not _TOKEN_NAME.fullmatch(name):
        raise ValueError(f"--token: must be lowercase letters, digits and dashes, not {name!r}")
    secret: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"sojourn-token-{name}"},
        "stringData": {"token": make_token()},
    }
    written = ROOT / RELEASE / TOKEN_FILE
    if written.exists():
        found = yaml.safe_load(written.read_text())
        if found["metadata"] == secret["metadata"]:
            secret = found
    entry = {"name": name, "hash": hash_token(secret["stringData"]["token"])}
    return yaml.safe_dump(secret, sort_keys=False), entry


def _check_fits(service: "ServiceConfig", pod: Pod) -> None:
    """Raise an error unless a pod has what a replica needs, and clients are sent to its port."""
    if service.http_port != PORT:
        raise ValueError(
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
            manifest = "overlays/gpu/kustomization.yaml" if pod.gpus else "base/rayservice.yaml"
            remedy = f"change both in k8s/{manifest} and k8s/render.py"
            if what == "GPUs" and not given:
                remedy = "take --of gpu or --of gpu-ha"
            raise ValueError(
                f"--config: a replica of {service.application} has {needed:g} {what}, and a pod "
                f"{given:g}: {remedy}"
            )


def _with_config(config: Path, pod: Pod, *, is_open: bool) -> dict[str, Any]:
    """Return what a kustomization needs for a Serve config of its own."""
    from deployments.access.exposure import check_exposure
    from deployments.config.document import load_service_configs
    from policy.errors import InvalidInputError

    services = load_service_configs(config)
    for service in services:
        _check_fits(service, pod)
        if is_open:
            try:
                check_exposure("0.0.0.0", service.user_config.access, insecure=False)
            except InvalidInputError as error:
                raise ValueError(
                    f"{config}: {service.application} has no tokens, so anyone who reaches the "
                    "cluster's network could use it: --token NAME makes one and a Secret that "
                    "holds it, or --insecure renders without"
                ) from error
    pods = sum(service.replicas[1] for service in services)
    local = {"annotations": {"config.kubernetes.io/local-config": "true"}}
    return {
        "configMapGenerator": [
            {
                "name": "serve-config-release",
                "files": ["serve_config.yaml"],
                "options": {"disableNameSuffixHash": True, **local},
            },
            {
                "name": "serve-environment",
                "behavior": "replace",
                "envs": ["serve_environment.env"],
            },
        ],
        "replacements": [
            {
                "source": {
                    "kind": "ConfigMap",
                    "name": "serve-config-release",
                    "fieldPath": "data.[serve_config.yaml]",
                },
                "targets": [
                    {"select": {"kind": "RayService"}, "fieldPaths": ["spec.serveConfigV2"]}
                ],
            }
        ],
        "patches": [
            {
                "target": {"kind": "RayService", "name": "sojourn"},
                "patch": yaml.safe_dump([{"op": "replace", "path": MAX_PODS, "value": pods}]),
            }
        ],
    }


def main() -> str | None:
    """Write the files or, with --check, report the first one that is out of date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only check for out-of-date files")
    parser.add_argument("--image", help="only write the overlay `release`, with this image")
    parser.add_argument(
        "--of", default="base", choices=["base", *GPU_OVERLAYS], help="what it is based on"
    )
    parser.add_argument("--config", type=Path, help="with --image: the Serve config of your model")
    parser.add_argument("--token", help="with --image: make a token of this name, and its Secret")
    parser.add_argument(
        "--insecure", action="store_true", help="with --image: render what anybody may use"
    )
    parser.add_argument(
        "--store", action="store_true", help="with --image: add a model store to each node"
    )
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if arguments.image is not None:
        from policy.errors import SojournError

        try:
            files = release(
                arguments.image,
                arguments.of,
                arguments.config or Path(os.path.relpath(ROOT / SOURCE)),
                arguments.token,
                insecure=arguments.insecure,
                store=arguments.store,
            )
        except (ValueError, SojournError) as error:
            return str(error)
        (ROOT / RELEASE).mkdir(exist_ok=True)
        for path, content in files.items():
            if path.name == TOKEN_FILE:
                (ROOT / path).touch(mode=0o600)
            (ROOT / path).write_text(content)
        return None
    if arguments.config or arguments.token or arguments.insecure or arguments.store:
        return "--config, --token, --insecure and --store need --image"
    check = arguments.check
    for path, content in render().items():
        file = ROOT / path
        if check and (not file.exists() or file.read_text() != content):
            return f"{path} is out of date: run k8s/render.py"
        if not check:
            file.write_text(content)
    return None


def _dump(config: dict[str, Any], source: str = str(SOURCE)) -> str:
    header = f"# Written by k8s/render.py from {source}; edit that.\n"
    return header + yaml.safe_dump(config, sort_keys=False)


if __name__ == "__main__":
    sys.exit(main())
