import re
import subprocess

import pytest

from tests.support.readme import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built with warnings as errors: broken links among them."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [ROOT / "scripts/docs", "--site-dir", folder], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    return folder


def test_every_page_is_there_and_links_lead_to_the_pages_of_the_site(site):
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    elsewhere = {"benchmarks", "changelog", "contributing", "kubernetes"}
    assert {path.stem for path in site.glob("*.html")} == pages | elsewhere | {"404"}
    for page, link in (
        ("kubernetes", "deploying.html#on-kubernetes"),
        ("index", "kubernetes.html"),
        ("measurements", "benchmarks.html"),
    ):
        assert f'href="{link}"' in (site / f"{page}.html").read_text()


def test_nothing_is_fetched_from_elsewhere(site):
    for page in site.glob("*.html"):
        # Other links are for readers to follow.
        fetched = re.findall(
            r'<(?:(?:script|img|iframe|source)\b[^>]*?\bsrc|link\b(?![^>]*\brel="?(?:canonical|prev|next))'
            r'[^>]*?\bhref)="?([^"\s>]+)',
            page.read_text(),
        )
        assert fetched
        assert [address for address in fetched if re.match(r"(\w+:)?//", address)] == []
    for style in site.rglob("*.css"):
        elsewhere = r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)\"']*"
        assert not re.findall(elsewhere, style.read_text())


def test_formulas_are_mathml_with_their_numbers(site):
    page = (site / "policy.html").read_text()
    numbers = re.findall(r"\\tag\{(\w+)\}", (ROOT / "docs/policy.md").read_text())
    assert re.findall(r'<span class="number">\((\w+)\)</span>', page) == numbers
    assert len(numbers) > 10
    formulas = re.findall(r"<math.*?</math>", page, flags=re.DOTALL)
    assert len(formulas) > 50
    # What the converter does not know, it leaves as it is.
    assert [formula for formula in formulas if re.search(r">\s*\\", formula)] == []
    assert "arithmatex" not in page
