"""The code blocks of the README."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """Return the README's blocks in `language`, in order."""
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands() -> list[list[str]]:
    """Return the words of each shell command that the README shows."""
    lines = "\n".join(blocks("bash")).splitlines()
    return [shlex.split(line) for line in lines if line and not line.startswith("#")]
