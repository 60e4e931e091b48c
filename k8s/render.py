#!/usr/bin/env python3
"""Generate the files in k8s/ that repeat other sources: Serve config, Ray's environment, alerts.

Run ``k8s/render.py`` after a change of configs/digits.yaml, deployments/routing.py or
monitoring/rules.yaml.
``k8s/render.py --check`` fails if a generated file is out of date. ``k8s/render.py --image
REGISTRY/sojourn@sha256:…`` writes the overlay k8s/overlays/release, with that image.
"""

import argparse
import re
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
SOURCE = Path("configs/digits.yaml")
RULES = Path("monitoring/rules.yaml")
HEADER = f"# Written by k8s/render.py from {SOURCE}; edit that.\n"
GPUS_PER_REPLICA = 1
#: Where the image has the program that runs HAProxy for Ray.
HAPROXY = Path("/usr/local/bin/sojourn-haproxy")
RELEASE = Path("k8s/overlays/release/kustomization.yaml")
#: A tag may be moved to another image; a digest names one.
_IMAGE = re.compile(r"([a-z0-9][a-z0-9._:/-]*)@(sha256:[0-9a-f]{64})")


def render() -> dict[Path, str]:
    """Return the content of each generated file, by its path from the root."""
    from deployments.config import load_service_config
    from deployments.request_environment import request_environment
    from deployments.routing import serve_environment, supervisor_environment

    service = load_service_config(ROOT / SOURCE)
    settings = {
        **serve_environment(),
        **request_environment([service], own={}),
        **supervisor_environment(HAPROXY),
    }
    variables = "".join(f"{name}={value}\n" for name, value in settings.items())
    source = f"# Written by k8s/render.py from deployments/ and {SOURCE}; edit that.\n"
    return {
        Path("k8s/base/serve_config.yaml"): _dump(serve_config()),
        Path("k8s/base/serve_environment.env"): source + variables,
        Path("k8s/overlays/gpu/serve_config.yaml"): _dump(serve_config(GPUS_PER_REPLICA)),
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


def serve_config(gpus_per_replica: int = 0) -> dict[str, Any]:
    """Return the source's Serve config, adapted to a cluster.

    The service listens on all interfaces of its pod, because clients are outside it; the source's
    address is for a laptop. With GPUs, each replica requests that many.
    """
    config: dict[str, Any] = yaml.safe_load((ROOT / SOURCE).read_text())
    config["http_options"] = {**config.get("http_options", {}), "host": "0.0.0.0"}
    if gpus_per_replica:
        for application in config["applications"]:
            for deployment in application["deployments"]:
                options = deployment.get("ray_actor_options", {})
                deployment["ray_actor_options"] = {**options, "num_gpus": gpus_per_replica}
    return config


def release(image: str, base: str) -> str:
    """Return the kustomization of `base` with an image.

    Parameters
    ----------
    image : str
        ``REGISTRY/NAME@sha256:DIGEST``.
    base : str
        ``base``, or the name of an overlay.

    Raises
    ------
    ValueError
        The image is not named by its digest.
    """
    found = _IMAGE.fullmatch(image)
    if found is None:
        raise ValueError(f"--image: must be REGISTRY/NAME@sha256:DIGEST, not {image!r}")
    content = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["../../base" if base == "base" else f"../{base}"],
        "images": [{"name": "sojourn", "newName": found[1], "digest": found[2]}],
    }
    return "# Written by k8s/render.py --image.\n" + yaml.safe_dump(content, sort_keys=False)


def main() -> str | None:
    """Write the files or, with --check, report the first one that is out of date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only check for out-of-date files")
    parser.add_argument("--image", help="only write the overlay `release`, with this image")
    parser.add_argument("--of", default="base", choices=["base", "gpu"], help="what it is based on")
    arguments = parser.parse_args()
    if arguments.image is not None:
        try:
            content = release(arguments.image, arguments.of)
        except ValueError as error:
            return str(error)
        (ROOT / RELEASE).parent.mkdir(exist_ok=True)
        (ROOT / RELEASE).write_text(content)
        return None
    check = arguments.check
    sys.path.insert(0, str(ROOT))
    for path, content in render().items():
        file = ROOT / path
        if check and (not file.exists() or file.read_text() != content):
            return f"{path} is out of date: run k8s/render.py"
        if not check:
            file.write_text(content)
    return None


def _dump(config: dict[str, Any]) -> str:
    return HEADER + yaml.safe_dump(config, sort_keys=False)


if __name__ == "__main__":
    sys.exit(main())
