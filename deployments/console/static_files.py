"""Static files of the console's page; they contain no data, so they need no token."""

from functools import cache
from importlib import resources

from deployments.errors import NotFoundError

_TYPES = {
    "html": b"text/html; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
}
#: The page loads only its own files, runs no inline script, and may not be framed.
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    # The files change together at an upgrade.
    (b"cache-control", b"no-cache"),
)
PAGE = "index.html"

Headers = list[tuple[bytes, bytes]]


@cache
def _files() -> dict[str, bytes]:
    folder = resources.files("deployments.console") / "static"
    return {
        file.name: file.read_bytes()
        for file in folder.iterdir()
        if file.name.rpartition(".")[2] in _TYPES
    }


def static_file(name: str) -> tuple[bytes, Headers]:
    """Return a file and its header fields; `NotFoundError` if the page has no such file."""
    body = _files().get(name)
    if body is None:
        raise NotFoundError(f"the console has no file {name!r:.100}")
    return body, [(b"content-type", _TYPES[name.rpartition(".")[2]]), *_HEADERS]
