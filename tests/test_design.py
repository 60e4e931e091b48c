import ast
import re
from functools import cache

import pytest

from tests.support.readme import ROOT, anchors

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "k8s/README.md"]
PACKAGES = ("policy", "autoscaler", "deployments", "loadtests", "sojourn", "benchmarks")


@cache
def names_in(path):
    """Return what a module defines, and ``Class.member`` of each of its classes."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        names |= defined_by(node)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{name}" for part in node.body for name in defined_by(part)}
    return frozenset(names)


def defined_by(node):
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_source_file_named_on_a_page_exists(page):
    named = set(re.findall(r"[\w./-]+/[\w-]+\.(?:py|yaml|md|toml)\b", page.read_text()))
    missing = [
        name
        for name in (name.removeprefix("SOJOURN/") for name in named)
        if not name.startswith(("http", "/", "//"))
        and "dist/" not in name  # what `sojourn package` writes in a user's folder
        and not (ROOT / name).exists()
        and not (page.parent / name).exists()
    ]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_dotted_name_on_a_page_exists(page):
    packages = "|".join(PACKAGES)
    text = page.read_text()
    dotted = set(re.findall(rf"`((?:{packages})(?:\.\w+)+)`", text))
    dotted |= set(re.findall(rf"python -m ((?:{packages})(?:\.\w+)+)", text))
    import_paths = re.findall(rf"((?:{packages})(?:\.\w+)+:\w+)", text)
    dotted |= {path.replace(":", ".") for path in import_paths}
    assert [name for name in sorted(dotted) if not exists(name)] == []


def exists(dotted):
    """Return whether a dotted name is a module, or a name that a module defines or imports."""
    parts = dotted.split(".")
    if module_file(parts):
        return True
    for end in range(len(parts) - 1, 0, -1):
        module = module_file(parts[:end])
        if module:
            imported = {
                alias.asname or alias.name
                for node in ast.walk(ast.parse(module.read_text()))
                if isinstance(node, ast.ImportFrom)
                for alias in node.names
            }
            return ".".join(parts[end:]) in names_in(module) or parts[end] in imported
    return False


def module_file(parts):
    path = ROOT.joinpath(*parts)
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((candidate for candidate in candidates if candidate.is_file()), None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_on_a_page_leads_somewhere(page):
    missing = []
    for link in re.findall(r"\]\((?!http)([^)\s]+)\)", page.read_text()):
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            missing.append(link)
    assert not missing
