"""What the docs say of the code exists: files, names, and the packages on the map."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
DESIGN = ROOT / "docs/design.md"
GLOSSARY = ROOT / "docs/glossary.md"
PACKAGES = (*("policy", "autoscaler", "deployments", "loadtests", "sojourn", "benchmarks"),)


def rows_of_names(page: Path) -> list[tuple[str, str, str]]:
    """Return (first cell, file, name) of each row whose table ends in the columns file and name."""
    rows = []
    columns: list[str] = []
    for line in page.read_text().splitlines():
        if not line.startswith("|"):
            columns = []
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not columns:
            columns = cells
        elif columns[-2:] == ["file", "name"] and cells[-2].strip("-"):
            rows.append((cells[0], cells[-2].strip("`"), cells[-1].strip("`")))
    return rows


@cache
def names_in(path: Path) -> frozenset[str]:
    """Return what a module defines, and ``Class.member`` of each of its classes."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        names |= defined_by(node)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{name}" for part in node.body for name in defined_by(part)}
    return frozenset(names)


def defined_by(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


@pytest.mark.slow
@pytest.mark.parametrize("page", [DESIGN, GLOSSARY], ids=lambda page: page.stem)
def test_every_file_and_name_in_the_tables_exists(page: Path) -> None:
    rows = rows_of_names(page)
    assert len(rows) > 30
    missing = [
        (what, file, name)
        for what, file, name in rows
        if not (ROOT / file).is_file() or name not in names_in(ROOT / file)
    ]
    assert not missing


def test_no_question_and_no_term_is_listed_twice() -> None:
    for page in (DESIGN, GLOSSARY):
        entries = [what for what, _, _ in rows_of_names(page)]
        assert len(entries) == len(set(entries))


def test_the_map_names_every_wing() -> None:
    named = set(re.findall(r"^\| `([\w/]+)` \|", DESIGN.read_text(), flags=re.MULTILINE))
    wings = {
        str(folder.parent.relative_to(ROOT))
        for package in PACKAGES
        for folder in (ROOT / package).rglob("__init__.py")
    }
    # The commands of the CLI are one row with it; the arena belongs to its script.
    wings -= {"sojourn/commands", "benchmarks", "benchmarks/simulated/arena"}
    assert wings <= named


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_source_file_named_on_a_page_exists(page: Path) -> None:
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
def test_every_dotted_name_on_a_page_exists(page: Path) -> None:
    packages = "|".join(PACKAGES)
    text = page.read_text()
    dotted = set(re.findall(rf"`((?:{packages})(?:\.\w+)+)`", text))
    dotted |= set(re.findall(rf"python -m ((?:{packages})(?:\.\w+)+)", text))
    import_paths = re.findall(rf"((?:{packages})(?:\.\w+)+:\w+)", text)
    dotted |= {path.replace(":", ".") for path in import_paths}
    assert [name for name in sorted(dotted) if not exists(name)] == []


def exists(dotted: str) -> bool:
    """Tell whether a dotted name is a module, or a name that a module defines or imports."""
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


def module_file(parts: list[str]) -> Path | None:
    path = ROOT.joinpath(*parts)
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def test_every_link_on_a_page_leads_somewhere() -> None:
    missing = [
        (page.name, link)
        for page in PAGES
        for link in re.findall(r"\]\((?!http)([^)#]+)[^)]*\)", page.read_text())
        if not (page.parent / link).exists()
    ]
    assert not missing
