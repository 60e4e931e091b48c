"""The URL of a running service, and how to ask it."""

import http.client
import json
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from deployments.access.credentials import authorization
from policy.errors import InvalidInputError

NO_ANSWER = (OSError, http.client.HTTPException)
"""Errors of ``urllib`` if nothing answers, or not in HTTP, or not to the end."""


def get_json(
    url: str | urllib.request.Request, token: str | None = None, timeout_s: float = 5.0
) -> Any:
    """Return the JSON at a URL; raise one of `NO_ANSWER`, or `ValueError` if it is none."""
    request = url if isinstance(url, urllib.request.Request) else urllib.request.Request(url)
    for name, value in authorization(token).items():
        request.add_header(name, value)
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        return json.load(answer)


def check_url(name: str, url: str) -> None:
    """Raise `InvalidInputError` unless a URL, which the user calls `name`, is one of HTTP."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        sound = False
    if not sound or not url.isprintable() or " " in url:
        raise InvalidInputError(f"{name}: must be like http://127.0.0.1:8000, not {url!r}")
