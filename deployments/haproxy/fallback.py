"""Which applications always have replicas, as the HAProxy of a node knows it.

Without a replica, HAProxy hands requests to Serve's own proxy, which holds each until there is one.
It has to where an application may be scaled to zero: it is those requests that bring the first
replica back. Where an application always has replicas, they have died or are being replaced:
Serve's proxy may know of one before HAProxy does, but what it cannot pass on at once is better told
to try again (`deployments.haproxy.ray_config.amend`).

Which applications always have replicas was written down when Ray was started. Where a later
deployment lifts that, the replicas leave a note for HAProxy on their node.
"""

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path


def note_minimum(folder: Path, backend: str, *, may_have_none: bool) -> None:
    """Leave a note for the HAProxy of this node.

    Parameters
    ----------
    folder : Path
        That of HAProxy's admin socket.
    backend : str
    may_have_none : bool
        Whether its application may be scaled to zero.
    """
    with suppress(OSError):  # there is no HAProxy on this node
        if may_have_none:
            _note(folder, backend).touch()
        else:
            _note(folder, backend).unlink(missing_ok=True)


def always_served(folder: Path, at_start: Collection[str]) -> frozenset[str]:
    """Return the backends that are never scaled to zero, as far as it is known on this node.

    Parameters
    ----------
    folder : Path
        That of HAProxy's admin socket.
    at_start : collection of str
        Those of which this was so when Ray was started.
    """
    return frozenset(backend for backend in at_start if not _note(folder, backend).exists())


def _note(folder: Path, backend: str) -> Path:
    return folder / f"{backend}.may-have-none"
