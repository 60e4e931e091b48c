"""Requests that a page on another site makes a user's browser send to a service of this machine.

A browser sends what a page asks it to, so a service that listens on loopback without tokens is open
to every page. A page's requests have its `Origin`. One whose name leads to this machine (DNS
rebinding) has none, but that name as `Host`.
"""

import ipaddress
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches `host`; no name but ``localhost`` qualifies."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_foreign(fields: Mapping[bytes, bytes]) -> bool:
    """Return whether a request, by its fields in lower case, may come from a page elsewhere."""
    host, origin = fields.get(b"host"), fields.get(b"origin")
    return (
        fields.get(b"sec-fetch-site") == b"cross-site"
        or (host is not None and not _is_of_loopback(b"//" + host))
        or (origin is not None and not _is_of_loopback(origin))
    )


@lru_cache(maxsize=256)
def _is_of_loopback(url: bytes) -> bool:
    try:
        return is_loopback(urlsplit(url.decode("ascii")).hostname or "")
    except ValueError:
        return False
