"""Hooks of MkDocs for the site of the documentation: pages that lie outside docs/, and formulas."""

import html
import os.path
import re
from pathlib import Path, PurePosixPath
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
#: The pages of the site that lie elsewhere in the repository, by their names on the site.
ELSEWHERE = {
    "benchmarks.md": "benchmarks/README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "kubernetes.md": "k8s/README.md",
}
#: The README is the event loop page on GitHub; the site has one of its own.
_ON_SITE = {source: name for name, source in ELSEWHERE.items()} | {"README.md": "index.md"}
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|[#/])([^)\s#]+)")
_FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<latex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)
_NUMBER = re.compile(r"\\tag\{(.*?)\}")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie elsewhere."""
    for name, source in ELSEWHERE.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Rewrite links between docs/ and pages outside it to their place on the site.

    A block of `console` has commands without a prompt, which its highlighter takes for output.
    """
    folder = PurePosixPath(ELSEWHERE.get(page.file.src_uri, f"docs/{page.file.src_uri}")).parent

    def on_site(link: re.Match[str]) -> str:
        target = os.path.normpath(folder / link[0])
        return _ON_SITE.get(target, target.removeprefix("docs/"))

    return _LINK.sub(on_site, markdown).replace("```console\n", "```bash\n")


def on_page_content(content: str, **_: Any) -> str:
    """Turn formulas into MathML, which browsers show without a script."""
    return _FORMULA.sub(_mathml, content)


def _mathml(formula: re.Match[str]) -> str:
    latex = html.unescape(formula["latex"])
    number = _NUMBER.search(latex)
    inline = formula["tag"] == "span"
    mathml = convert(_NUMBER.sub("", latex).strip(), display="inline" if inline else "block")
    if inline:
        return mathml
    label = f'<span class="number">({number[1]})</span>' if number else ""
    return f'<div class="formula">{mathml}{label}</div>'
