"""The commands of a page, run as a user would."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.support.processes.services import BIN, ROOT

TIMEOUT_S = 300


def run_block(commands: str, folder: Path, real: Mapping[str, str]) -> str:
    """Run a block of a page in a folder, with the environment active; return what it prints.

    `real` has what stands for the addresses that the page shows.
    """
    for shown, address in real.items():
        commands = commands.replace(shown, address)
    ran = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", commands],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert ran.returncode == 0, ran.stderr + ran.stdout
    return ran.stdout
