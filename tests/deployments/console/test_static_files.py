import re
from importlib import resources
from pathlib import Path

import pytest

from deployments.console.static_files import PAGE, static_file
from deployments.errors import NotFoundError

FOLDER = Path(str(resources.files("deployments.console") / "static"))
SCRIPTS = {path.name: path.read_text() for path in FOLDER.glob("*.js")}
TEXT = static_file(PAGE)[0].decode()
#: Names and values of all attributes of the page's tags.
ATTRIBUTES = re.findall(r'\s([\w-]+)="([^"]*)"', TEXT)


def test_the_page_names_its_own_files_only():
    named = [value for name, value in ATTRIBUTES if name in ("src", "href") and value[0] != "#"]
    needed = {name.removeprefix("static/") for name in named}
    imports = re.compile(r'(?:from|import) "\./([^"]+)"')
    for _ in SCRIPTS:
        needed |= {found for name in needed for found in imports.findall(SCRIPTS.get(name, ""))}
    # And there is none that it does not need.
    assert needed == {path.name for path in FOLDER.iterdir()} - {PAGE}
    assert all(static_file(name)[0] for name in needed)


def test_nothing_in_the_page_is_kept_from_working_by_its_policy():
    policy = dict(static_file(PAGE)[1])[b"content-security-policy"].decode()
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert not re.findall(r"<(?:script|style)[^>]*>\s*[^<\s]", TEXT)
    assert not [name for name, _ in ATTRIBUTES if name.startswith("on") or name == "style"]
    for text in SCRIPTS.values():
        assert not re.search(r"innerHTML|\beval\(|new Function|insertAdjacentHTML", text)
        assert not re.search("https?://", text.replace("http://www.w3.org/2000/svg", ""))


def test_ids_that_the_scripts_look_for_are_in_the_page():
    ids = [value for name, value in ATTRIBUTES if name == "id"]
    assert len(ids) == len(set(ids))
    wanted = {name for text in SCRIPTS.values() for name in re.findall(r'byId\("([^"]+)"\)', text)}
    assert len(wanted) > 20
    assert wanted <= set(ids)


@pytest.mark.parametrize("name", ["", "nothing.js", "../feed.py", "../static/main.js", "feed.py"])
def test_there_is_nothing_else(name):
    with pytest.raises(NotFoundError, match="the console has no file"):
        static_file(name)
