"""The URL of a running service, and the errors of asking one."""

import http.client
from urllib.parse import urlsplit

from policy.errors import InvalidInputError

NO_ANSWER = (OSError, http.client.HTTPException)
"""What ``urllib`` raises if nothing answers, or not in HTTP, or not to the end."""


def check_url(name: str, url: str) -> None:
    """Raise `InvalidInputError` unless a URL, which the user calls `name`, is one of HTTP."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        sound = False
    if not sound or not url.isprintable() or " " in url:
        raise InvalidInputError(f"{name}: must be like http://127.0.0.1:8000, not {url!r}")
