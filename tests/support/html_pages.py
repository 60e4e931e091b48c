"""What a browser would have to repair in a page, and what the page refers to."""

from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "link", "input", "path", "use", "rect", "circle", "line"}


class Page(HTMLParser):
    """A page, parsed; an element that is not closed in order, or a repeated id, is an error."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.refers_to: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self._ids: set[str] = set()
        self.feed(source)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert len(dict(attrs)) == len(attrs), attrs
        for name, value in attrs:
            if name == "id":
                assert value not in self._ids, value
                self._ids.add(value or "")
            if name in ("src", "href", "action", "data", "poster", "srcset"):
                self.refers_to.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.text += data


def check_whole(source: str) -> Page:
    """Check that a page is well formed and needs nothing from elsewhere; return it parsed."""
    page = Page(source)
    assert {"html", "head", "title", "body", "main", "table"} <= page.tags
    assert not {"script", "link", "iframe", "img", "object", "base"} & page.tags
    assert all(reference.startswith("#") for reference in page.refers_to)
    assert "://" not in source
    assert "@import" not in source
    return page
