"""The URL of a running service, and how to ask it."""

import http.client
import json
import urllib.request
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

from deployments.access.credentials import TOKEN_VARIABLE, authorization
from policy.errors import InvalidInputError

NO_ANSWER = (OSError, http.client.HTTPException)
"""Errors of ``urllib`` if nothing answers, or not in HTTP, or not to the end."""


def ask(url: str, path: str, token: str | None, timeout_s: float = 10.0) -> dict[str, Any]:
    """Return the JSON object at a path of a service; `InvalidInputError` says why there is none."""
    try:
        content = get_json(url + path, token, timeout_s)
    except HTTPError as error:
        with error:
            raise InvalidInputError(_refusal(url, path, error)) from None
    except NO_ANSWER as error:
        reason = getattr(error, "reason", error)
        raise InvalidInputError(
            f"no service answers at {url} ({reason}); `sojourn serve` starts one"
        ) from None
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise InvalidInputError(f"{url}{path} is not that of a Sojourn service")
    return content


def _refusal(url: str, path: str, error: HTTPError) -> str:
    if error.code in (401, 403):
        scope = "operations" if path.startswith("/sojourn/") else "inference"
        return (
            f"the service at {url} needs a token for {scope}: pass it with --token-file or in "
            f"{TOKEN_VARIABLE}"
        )
    if error.code == 404:
        return (
            f"the service at {url} has no {path}{error_message(error)}; --url ends with its route "
            "prefix, if it has one"
        )
    if error.headers.get("X-Sojourn-Reason") == "no_replica":
        return (
            f"no replica of the service at {url} answers, so every request is refused; `serve "
            "status` and the replicas' logs say why none starts"
        )
    return f"the service at {url} is not ready: HTTP {error.code}"


def error_message(error: HTTPError) -> str:
    """Return the service's own message, in parentheses, if it answered in JSON."""
    try:
        return f" ({json.load(error)['error']})"
    except (*NO_ANSWER, ValueError, KeyError, TypeError):
        return ""


def get_json(
    url: str | urllib.request.Request, token: str | None = None, timeout_s: float = 10.0
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
