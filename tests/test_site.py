"""The documentation builds as a site, which needs nothing from the network."""

import json
import os
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.support.readme import ROOT

pytestmark = pytest.mark.slow

#: What a browser fetches by itself, by tag; links are for readers to follow.
FETCHED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
NOT_FETCHED = {"canonical", "prev", "next"}


class Fetches(HTMLParser):
    """Collects the addresses that a page fetches."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        address = given.get(FETCHED.get(tag, ""))
        if address and given.get("rel") not in NOT_FETCHED:
            self.found.append(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with warnings as errors."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [ROOT / "scripts/docs", "--site-dir", folder], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    return folder


@cache
def text_of(path: Path) -> str:
    return path.read_text()


def test_every_page_is_there(site: Path) -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    elsewhere = {"benchmarks", "changelog", "contributing", "kubernetes"}
    assert {path.stem for path in site.glob("*.html")} == pages | elsewhere | {"404"}


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for page in site.glob("*.html"):
        fetches = Fetches()
        fetches.feed(text_of(page))
        assert fetches.found
        assert [address for address in fetches.found if re.match(r"(\w+:)?//", address)] == []
    for style in site.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)\"']*", text_of(style))


def test_the_search_finds_pages_of_docs_and_of_elsewhere(site: Path) -> None:
    index = json.loads(text_of(site / "search/search_index.json"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {"concepts.html", "kubernetes.html", "config.html"} <= found


def test_formulas_are_mathml_with_their_numbers(site: Path) -> None:
    page = text_of(site / "policy.html")
    source = text_of(ROOT / "docs/policy.md")
    numbers = re.findall(r"\\tag\{(\w+)\}", source)
    assert re.findall(r'<span class="number">\((\w+)\)</span>', page) == numbers
    assert len(numbers) > 10
    formulas = re.findall(r"<math.*?</math>", page, flags=re.DOTALL)
    assert len(formulas) > 50
    # What the converter does not know, it leaves as it is.
    assert [formula for formula in formulas if re.search(r">\s*\\", formula)] == []
    assert "arithmatex" not in page


def test_links_between_folders_lead_to_the_pages_of_the_site(site: Path) -> None:
    assert 'href="deploying.html#on-kubernetes"' in text_of(site / "kubernetes.html")
    assert 'href="kubernetes.html"' in text_of(site / "index.html")
    assert 'href="benchmarks.html"' in text_of(site / "measurements.html")


def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    config = text_of(ROOT / "mkdocs.yml").partition("\nnav:")[0]
    config = config.replace("scripts/docs_hooks.py", str(ROOT / "scripts/docs_hooks.py"))
    (tmp_path / "mkdocs.yml").write_text(config)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("# Home\n\n[there](missing.md)\n")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", tmp_path / "site"],
        cwd=tmp_path,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert built.returncode != 0
    assert "missing.md" in built.stderr
