#!/usr/bin/env python3
"""Generate the files in k8s/ that repeat other sources: Serve config, environment, alerts.

Run ``k8s/render.py`` after a change of configs/digits.yaml, configs/emulated-p4.yaml,
deployments/haproxy/routing.py or k8s/monitoring/rules.yaml.
``k8s/render.py --check`` fails if a generated file is out of date. What is generated answers nobody
until it has tokens, but for the demo. `sojourn k8s render` writes the overlay of a release.
"""

import argparse
import sys
from pathlib import Path

import yaml

from sojourn.k8s_release import environment, read_pod, serve_config, serve_config_patch

ROOT = Path(__file__).resolve().parent.parent
SOURCE = Path("configs/digits.yaml")
DEMO = Path("configs/emulated-p4.yaml")
RULES = Path("k8s/monitoring/rules.yaml")


def render() -> dict[Path, str]:
    """Return the content of each generated file, by its path from the root."""
    return {
        Path("k8s/base/serve_config.yaml"): serve_config_patch(
            serve_config(ROOT / SOURCE), str(SOURCE)
        ),
        Path("k8s/base/serve_environment.env"): environment(ROOT / SOURCE, str(SOURCE)),
        Path("k8s/overlays/gpu/serve_config.yaml"): serve_config_patch(
            serve_config(ROOT / SOURCE, read_pod(ROOT / "k8s", "gpu").gpus), str(SOURCE)
        ),
        Path("k8s/overlays/cpu-demo/serve_config.yaml"): serve_config_patch(
            serve_config(ROOT / DEMO, tokens=None), str(DEMO)
        ),
        Path("k8s/overlays/cpu-demo/serve_environment.env"): environment(ROOT / DEMO, str(DEMO)),
        Path("k8s/monitoring/prometheusrule.yaml"): prometheus_rule(),
    }


def prometheus_rule() -> str:
    """Return the rules of Prometheus as its operator takes them; nothing scrapes a store."""
    groups = yaml.safe_load((ROOT / RULES).read_text())["groups"]
    content = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "sojourn"},
        "spec": {"groups": [group for group in groups if group["name"] != "sojourn-store"]},
    }
    header = f"# Generated from {RULES}; edit that.\n"
    return header + yaml.safe_dump(content, sort_keys=False, width=120)


def main() -> str | None:
    """Write the files or, with --check, report the first one that is out of date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only check for out-of-date files")
    check = parser.parse_args().check
    for path, content in render().items():
        file = ROOT / path
        if check and (not file.exists() or file.read_text() != content):
            return f"{path} is out of date: run k8s/render.py"
        if not check:
            file.write_text(content)
    return None


if __name__ == "__main__":
    sys.exit(main())
