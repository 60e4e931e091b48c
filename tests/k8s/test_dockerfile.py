"""The Dockerfile copies files that exist, at the project's versions. `scripts/image` builds it."""

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def copied() -> list[str]:
    lines = re.findall(r"^COPY (.+)$", DOCKERFILE, flags=re.MULTILINE)
    return [source for line in lines for source in line.split()[:-1]]


def test_python_is_the_projects():
    (version,) = re.findall(r"^ARG BASE=python:(\d+\.\d+)", DOCKERFILE, flags=re.MULTILINE)
    assert re.findall(r"^FROM (.+)$", DOCKERFILE, flags=re.MULTILINE) == ["${BASE}"]
    assert PROJECT["project"]["requires-python"].startswith(f">={version},")


def test_what_is_copied_exists():
    assert [source for source in copied() if not (ROOT / source).exists()] == []


def test_every_package_is_copied():
    packages = PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {name.rstrip("*") for name in packages} <= set(copied())


def test_nothing_copied_is_ignored():
    rules = (ROOT / ".dockerignore").read_text().split("\n")
    kept = [rule[1:] for rule in rules if rule.startswith("!")]
    assert sorted(kept) == sorted(copied())
    ignored = [rule for rule in rules if rule.startswith("**/")]
    for source in copied():
        assert not any(fnmatch(source, rule.removeprefix("**/")) for rule in ignored)


def test_versions_come_from_the_lock_alone():
    assert re.findall(r"==\d", DOCKERFILE) == []
    lock = (ROOT / "requirements.lock").read_text()
    build_tools = re.findall(r"^setuptools==.+$", lock, flags=re.MULTILINE)
    assert PROJECT["build-system"]["requires"] == build_tools


def test_each_package_but_torch_is_installed_by_its_hash():
    lines = (ROOT / "requirements.hashes").read_text().splitlines()
    hashed = {}
    for line in lines:
        if not line.startswith("#"):
            pin, digest = re.fullmatch(r"(\S+==\S+) --hash=sha256:([0-9a-f]{64})", line).groups()
            hashed[pin] = digest
    locked = set((ROOT / "requirements.lock").read_text().splitlines())
    assert set(hashed) <= locked
    hashed = {canonical(pin): digest for pin, digest in hashed.items()}
    wanted = [*PROJECT["build-system"]["requires"], *PROJECT["project"]["dependencies"]]
    wanted += PROJECT["project"]["optional-dependencies"]["tracing"]
    pins = {canonical(re.sub(r"\[.*\]", "", pin)) for pin in wanted}
    assert {pin for pin in pins if pin not in hashed} == {f"torch=={torch_version()}"}
    assert len(set(hashed.values())) == len(hashed) > len(pins)
    assert "--require-hashes --requirement requirements.hashes" in DOCKERFILE


def canonical(pin):
    return pin.lower().replace("_", "-")


def torch_version():
    lock = (ROOT / "requirements.lock").read_text()
    (version,) = re.findall(r"^torch==(.+)$", lock, flags=re.MULTILINE)
    return version


def test_it_runs_as_the_manifests_user():
    assert re.findall(r"^USER (.+)$", DOCKERFILE, flags=re.MULTILINE) == ["1000:1000"]
