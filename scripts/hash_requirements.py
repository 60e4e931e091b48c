#!/usr/bin/env python3
"""Write requirements.hashes: the image's packages but for torch, each with its wheel's SHA-256.

Run it in the environment of `scripts/setup` after a change of requirements.lock, on the platform
of the image (Linux, x86-64, Python 3.11). pip asks its index for the wheels that it would install;
which packages are needed follows from the dependencies of those in the environment.
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
LOCK, HASHES = ROOT / "requirements.lock", ROOT / "requirements.hashes"
#: Optional dependencies that the image has, too.
EXTRAS = ("reports", "store", "torch", "tracing")
#: From an index of its own; see the Dockerfile.
ELSEWHERE = "torch"
HEADER = (
    "# Written by scripts/hash_requirements.py from requirements.lock; edit that. For Linux on\n"
    "# x86-64 and Python 3.11.\n"
)


def needed() -> set[str]:
    """Return the canonical names of what the project needs at run time, torch's needs included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lines = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    for extra in EXTRAS:
        lines += project["project"]["optional-dependencies"][extra]
    pending = [Requirement(line) for line in lines]
    found: dict[str, set[str]] = {}
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        extras = {"", *requirement.extras}
        new = extras - found.get(name, set())
        found.setdefault(name, set()).update(extras)
        if not new:
            continue
        try:
            lines = requires(name) or []
        except PackageNotFoundError:
            sys.exit(f"{name} is not installed: run `make setup` first")
        for line in lines:
            dependency = Requirement(line)
            marker = dependency.marker
            environment = default_environment()
            if marker is None or any(
                marker.evaluate({**environment, "extra": extra}) for extra in new
            ):
                pending.append(dependency)
    return set(found)


def hashes(lines: list[str]) -> dict[str, str]:
    """Return the SHA-256 of the wheel that pip would install, by canonical name."""
    with tempfile.TemporaryDirectory() as folder:
        wanted, report = Path(folder, "wanted"), Path(folder, "report")
        wanted.write_text("\n".join(lines))
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps"]
        command += ["--ignore-installed", "--only-binary=:all:", "--report", str(report)]
        subprocess.run([*command, "--requirement", str(wanted)], check=True)
        entries = json.loads(report.read_text())["install"]
    return {
        canonicalize_name(entry["metadata"]["name"]): entry["download_info"]["archive_info"][
            "hashes"
        ]["sha256"]
        for entry in entries
    }


def main() -> None:
    """Write the file."""
    names = needed() - {ELSEWHERE}
    locked = [line for line in LOCK.read_text().splitlines() if re.match(r"[A-Za-z0-9]", line)]
    lines = [line for line in locked if canonicalize_name(line.partition("==")[0]) in names]
    missing = names - {canonicalize_name(line.partition("==")[0]) for line in lines}
    if missing:
        sys.exit(f"requirements.lock lacks {', '.join(sorted(missing))}")
    found = hashes(lines)
    HASHES.write_text(
        HEADER
        + "".join(
            f"{line} --hash=sha256:{found[canonicalize_name(line.partition('==')[0])]}\n"
            for line in lines
        )
    )


if __name__ == "__main__":
    main()
