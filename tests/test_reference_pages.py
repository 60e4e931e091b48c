"""The pages that are generated from the code: complete, up to date, and without a gap."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from sojourn.cli import COMMANDS, cli
from tests.support.readme import ROOT

CONFIG = (ROOT / "docs/config.md").read_text()
COMMAND_PAGE = (ROOT / "docs/commands.md").read_text()
#: Names that the user chooses, and contents of other formats.
FREE = {"options", "models", "profile", "ray_actor_options"}
#: Mappings from keys of the user's to parts of the config.
KEYED = {"branches"}


def keys_of(content: Any) -> Iterator[str]:
    """Yield the keys of a part of a config that are not the user's."""
    if isinstance(content, list):
        for part in content:
            yield from keys_of(part)
    elif isinstance(content, dict):
        for name, part in content.items():
            yield name
            if name in KEYED:
                yield from keys_of(list(part.values() if isinstance(part, dict) else part))
            elif name not in FREE:
                yield from keys_of(part)


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_key_of_the_bundled_configs_is_explained(path: Path) -> None:
    used = set()
    for application in yaml.safe_load(path.read_text())["applications"]:
        used |= set(keys_of(application["args"]))
        for deployment in application["deployments"]:
            used |= set(keys_of(deployment["user_config"]))
    assert len(used) > 4
    headings = re.findall(r"^### `(.+)`$", CONFIG, re.MULTILINE)
    sections = set(re.findall(r"\w+", " ".join(headings)))
    rows = set(re.findall(r"^\| `(\w+)` \| ", CONFIG, re.MULTILINE))
    assert (
        used - rows - sections - {"stage", "each", "switch", "ensemble", "ray_actor_options"}
        == set()
    )


def test_no_key_is_without_a_meaning() -> None:
    rows = [line for line in CONFIG.splitlines() if line.startswith("| `")]
    assert len(rows) > 60
    for row in rows:
        *_, meaning, end = row.replace("\\|", "or").split(" |")
        assert end == ""
        assert meaning.strip().endswith((".", "…")), row


def options_of(command: click.Command) -> Iterator[str]:
    """Yield the options of a command and of those below it, but for hidden ones."""
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            yield from parameter.opts
    if isinstance(command, click.Group):
        for below in command.commands.values():
            yield from options_of(below)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_is_on_the_page(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    _, found, section = COMMAND_PAGE.partition(f"\n## `sojourn {name}`\n")
    assert found
    section = section.partition("\n## ")[0]
    assert [option for option in options_of(command) if f"{option}" not in section] == []


@pytest.mark.slow
def test_the_pages_are_up_to_date() -> None:
    checked = subprocess.run(
        [sys.executable, ROOT / "scripts/reference_pages.py", "--check"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stderr
