import os
import re
import subprocess
import sys

import pytest
import yaml

from tests.support.readme import ROOT

#: Names that the user chooses, and contents of other formats.
FREE = {"options", "models", "profile", "ray_actor_options"}
#: Mappings from keys of the user's to parts of the config.
KEYED = {"branches"}
STEPS = {"stage", "each", "switch", "ensemble"}


def keys_of(content):
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
def test_every_key_of_the_bundled_configs_is_explained(path):
    used = set()
    for application in yaml.safe_load(path.read_text())["applications"]:
        used |= set(keys_of(application["args"]))
        for deployment in application["deployments"]:
            used |= set(keys_of(deployment["user_config"]))
    assert len(used) > 4
    page = (ROOT / "docs/config.md").read_text()
    sections = re.findall(r"\w+", " ".join(re.findall(r"^### `(.+)`$", page, re.MULTILINE)))
    rows = re.findall(r"^\| `(\w+)` \| ", page, re.MULTILINE)
    assert used - {*rows, *sections} - STEPS - {"ray_actor_options"} == set()


@pytest.mark.slow
def test_the_pages_are_up_to_date():
    checked = subprocess.run(
        [sys.executable, ROOT / "scripts/reference_pages.py", "--check"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stderr
