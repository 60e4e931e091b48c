"""The Dockerfile copies files that exist, at the project's versions. `scripts/image` builds it.

compose.yaml runs what is in the image.
"""

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deployments.local.service import STOP_TIMEOUT_S
from sojourn.commands import loadtest, serve
from tests.support.readme import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def lines(keyword):
    return re.findall(rf"^{keyword} (.+)$", DOCKERFILE, flags=re.MULTILINE)


def test_python_is_the_projects_and_the_user_is_the_manifests():
    (version,) = re.findall(r"^ARG BASE=python:(\d+\.\d+)", DOCKERFILE, flags=re.MULTILINE)
    assert lines("FROM") == ["${BASE}"]
    assert PROJECT["project"]["requires-python"].startswith(f">={version},")
    assert lines("USER") == ["1000:1000"]


def test_every_package_and_nothing_that_is_ignored_is_copied():
    copied = [source for line in lines("COPY") for source in line.split()[:-1]]
    assert [source for source in copied if not (ROOT / source).exists()] == []
    packages = PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {name.rstrip("*") for name in packages} <= set(copied)
    rules = (ROOT / ".dockerignore").read_text().split("\n")
    assert sorted(rule[1:] for rule in rules if rule.startswith("!")) == sorted(copied)
    ignored = [rule.removeprefix("**/") for rule in rules if rule.startswith("**/")]
    assert not [name for name in copied for rule in ignored if fnmatch(name, rule)]


def test_each_package_but_torch_is_installed_at_its_locked_version_by_its_hash():
    assert re.findall(r"==\d", DOCKERFILE) == []
    assert "--require-hashes --requirement requirements.hashes" in DOCKERFILE
    hashed, locked = (
        {
            (canonicalize_name(name), version)
            for name, version in re.findall(r"^([\w.-]+)==([\w.]+)", text, flags=re.MULTILINE)
        }
        for text in ((ROOT / f"requirements.{kind}").read_text() for kind in ("hashes", "lock"))
    )
    assert {name for name, _ in locked - hashed} == {"torch"}
    assert hashed <= locked
    needed = [*PROJECT["build-system"]["requires"], *PROJECT["project"]["dependencies"]]
    for extra in ("images", "loadtest", "reports", "store", "torch", "tracing"):
        needed += PROJECT["project"]["optional-dependencies"][extra]
    names = {canonicalize_name(Requirement(pin).name) for pin in needed}
    assert names - {"sojourn"} <= {name for name, _ in locked}


def test_compose_serves_to_this_machine_alone_and_a_load_test_beside_it_finds_the_service():
    service, load_test = COMPOSE["sojourn"], COMPOSE["loadtest"]
    assert service["image"] == load_test["image"] == f"sojourn:{PROJECT['project']['version']}"
    program, name, *options = service["command"]
    assert [program, name] == ["sojourn", "serve"]
    served = serve.command.make_context(name, options).params
    assert (served["host"], served["port"], served["insecure"]) == ("0.0.0.0", None, True)
    (folder,) = service["volumes"]
    home = lines("WORKDIR")[-1]
    config = Path(served["config"])
    assert folder == f"./{config.parent}:{home}/{config.parent}:ro"
    port = yaml.safe_load((ROOT / config).read_text())["http_options"]["port"]
    assert service["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert f"'http://127.0.0.1:{port}/v2/health/ready'" in service["healthcheck"]["test"][-1]
    assert load_test["network_mode"] == "service:sojourn"
    assert load_test["entrypoint"] == ["sojourn", "loadtest"]
    sent = loadtest.command.make_context("loadtest", load_test["command"]).params
    assert sent["url"] == f"http://127.0.0.1:{port}"
    assert int(service["stop_grace_period"].removesuffix("s")) > STOP_TIMEOUT_S
