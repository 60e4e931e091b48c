"""The code blocks of the README and of the other pages."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]


def blocks(language: str, page: str = "README.md", section: str = "") -> list[str]:
    """Return the blocks in `language` of a page, or of one of its sections, in order."""
    text = (ROOT / page).read_text()
    if section:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def commands() -> list[list[str]]:
    """Return the words of each shell command that the README shows."""
    lines = "\n".join(blocks("bash")).splitlines()
    return [shlex.split(line) for line in lines if line and not line.startswith("#")]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page, as GitHub makes them."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in found}
