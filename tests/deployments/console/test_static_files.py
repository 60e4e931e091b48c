"""The files of the page are all there, and keep to the policy that they are sent with."""

import re
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest

from deployments.console.static_files import PAGE, static_file
from deployments.errors import NotFoundError

FOLDER = Path(str(resources.files("deployments.console") / "static"))


class Tags(HTMLParser):
    """Collects the tags of a page, and the text within scripts."""

    def __init__(self):
        super().__init__()
        self.tags = []
        self.scripts = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.tags and self.tags[-1][0] in ("script", "style") and data.strip():
            self.scripts.append(data)


@pytest.fixture(scope="module")
def page():
    tags = Tags()
    tags.feed(static_file(PAGE)[0].decode())
    return tags


def test_the_page_names_its_own_files_only(page):
    named = [
        attributes[key]
        for _, attributes in page.tags
        for key in ("src", "href")
        if attributes.get(key) and not attributes[key].startswith("#")
    ]
    assert len(named) >= 3
    scripts = {name.removeprefix("static/") for name in named}
    while True:
        imported = {
            found
            for name in scripts
            if name.endswith(".js")
            for found in re.findall(r'(?:from|import) "\./([^"]+)"', static_file(name)[0].decode())
        }
        if imported <= scripts:
            break
        scripts |= imported
    # And there is none that it does not need.
    assert scripts == {path.name for path in FOLDER.iterdir()} - {PAGE}
    assert all(static_file(name)[0] for name in scripts)


def test_nothing_in_the_page_is_kept_from_working_by_its_policy(page):
    headers = dict(static_file(PAGE)[1])
    policy = headers[b"content-security-policy"].decode()
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert page.scripts == []
    for tag, attributes in page.tags:
        inline = [name for name in attributes if name.startswith("on") or name == "style"]
        assert not inline, (tag, inline)
    scripts = sorted(FOLDER.glob("*.js"))
    assert len(scripts) > 5
    for script in scripts:
        text = script.read_text()
        assert not re.search(r"innerHTML|\beval\(|new Function|insertAdjacentHTML", text)
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in text


def test_ids_that_the_scripts_look_for_are_in_the_page(page):
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    wanted = {
        name
        for script in FOLDER.glob("*.js")
        for name in re.findall(r'byId\("([^"]+)"\)', script.read_text())
    }
    assert len(wanted) > 20
    assert wanted <= set(ids)


@pytest.mark.parametrize("name", ["", "nothing.js", "../feed.py", "../static/main.js", "feed.py"])
def test_there_is_nothing_else(name):
    with pytest.raises(NotFoundError, match="the console has no file"):
        static_file(name)
