import re

import pytest

from benchmarks.inputs import ROOT

FOLDER = ROOT / "benchmarks"
README = (FOLDER / "README.md").read_text()
#: Run by themselves, and not by `benchmarks.live.data_path` or `benchmarks.simulated.autoscaler`.
SCRIPTS = sorted(
    path
    for pattern in (
        *("*.py", "paper/*.py", "live/*.py", "simulated/*.py", "resilience/[a-z]*.py"),
        "*/__main__.py",
    )
    for path in FOLDER.glob(pattern)
    if '__name__ == "__main__"' in path.read_text()
)


def module_of(script):
    return ".".join(script.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")


def test_the_readme_lists_exactly_the_scripts():
    listed = re.findall(r"^\| `([\w.]+)` \|", README, flags=re.MULTILINE)
    assert [f"benchmarks.{name}" for name in sorted(listed)] == [*map(module_of, SCRIPTS)]


@pytest.mark.parametrize("script", SCRIPTS, ids=module_of)
def test_a_script_says_how_it_is_run_and_prints_json(script):
    text = script.read_text()
    docstring = text.split('"""')[1]
    assert f"\n    python -m {module_of(script)} " in docstring
    assert "[--json]" in docstring
    assert "@json_option\n" in text
    for option, decorator in (("[--quick]", "@quick_option("), ("[--plot ", "@plot_option\n")):
        assert (option in docstring) == (decorator in text)


def test_pages_of_the_readme_exist():
    pages = re.findall(r"\]\(([^)#:]+)[#)]", README)
    assert pages
    for page in pages:
        assert (FOLDER / page).exists(), page


def test_scripts_that_the_code_and_the_pages_name_exist():
    folders = ("autoscaler", "deployments", "docs", "loadtests", "policy", "sojourn", "tests")
    texts = [path for folder in folders for path in (ROOT / folder).rglob("*.[pm][yd]")]
    found = re.compile(r"benchmarks/\w+(?:/\w+)*[.]py")
    named = {name for path in texts for name in found.findall(path.read_text())}
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
