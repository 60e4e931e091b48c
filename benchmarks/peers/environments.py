"""The peers' virtual environments, created outside the repository when first needed."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

CACHE_VARIABLE = "SOJOURN_BENCHMARK_CACHE"
REQUIREMENTS = Path(__file__).with_name("requirements")
#: Triton's Python backend brings an interpreter from before 3.11.7 that reads the environment's
#: standard library, which 3.11.7 changed incompatibly. The system's Python may be old enough.
PYTHONS = {"triton": "/usr/bin/python3.11"}


class UnavailableError(Exception):
    """A server cannot be measured on this machine; the message says why in one line."""


def python_of(peer: str) -> str:
    """Return the interpreter of a peer's environment, creating the environment if needed.

    Raises
    ------
    UnavailableError
        The environment cannot be installed.
    """
    cache = Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "sojourn-benchmarks")
    requirements = REQUIREMENTS / f"{peer}.txt"
    # Changed pins make a new environment.
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    folder = cache / f"{peer}-{digest}"
    python = folder / "bin" / "python"
    done = folder / "installed"
    if not done.exists():
        print(f"benchmarks: installing {peer} into {folder}", file=sys.stderr)
        cache.mkdir(parents=True, exist_ok=True)
        wanted = PYTHONS.get(peer, sys.executable)
        base = wanted if Path(wanted).exists() else sys.executable
        _run(["-m", "venv", "--clear", str(folder)], base)
        pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        try:
            _run([*pip, "--only-binary=:all:", "-r", str(requirements)], str(python))
        except UnavailableError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        done.touch()
    return str(python)


def _run(arguments: list[str], python: str) -> None:
    result = subprocess.run([python, *arguments], capture_output=True, text=True, check=False)
    if result.returncode:
        lines = result.stderr.strip().splitlines() or ["no reason given"]
        errors = [line for line in lines if line.startswith("ERROR")]
        raise UnavailableError(f"cannot be installed: {(errors or lines)[-1]}")
