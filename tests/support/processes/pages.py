"""The commands of a page, run as a user would."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.support.processes.services import BIN, ROOT

TIMEOUT_S = 300


def run_block(commands: str, folder: Path, real: Mapping[str, str]) -> str:
    """Run commands in a folder, with the environment active; return what they print.

    Parameters
    ----------
    commands : str
        A block of a page.
    folder : Path
        Where to run them.
    real : mapping of str to str
        What stands for the addresses that the page shows.
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
