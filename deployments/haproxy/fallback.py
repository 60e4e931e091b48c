"""How long Serve's own proxy may hold a request, as the HAProxy of a node knows it.

Without a replica to send a request to, HAProxy hands it to Serve's proxy, which holds it until
there is one. It has to where an application may be scaled to zero: it is those requests that bring
the first replica back. Also, while Ray deploys a new version, it tells its proxy of the replicas
that serve, and HAProxy of none. But where an application always has replicas, and all have died,
clients should be told in time to try again (`deployments.haproxy.ray_config.amend`).

Which applications always have replicas was written down when Ray was started. The replicas leave a
note for the HAProxy of their node: how long their SLA allows, or that there may be none by now.
"""

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

#: How long requests are held where no replica has left a note.
HELD_MS = 10_000
_FOR_EVER = "for ever"


def note_held(folder: Path, backend: str, held_ms: float | None) -> None:
    """Leave a note for the HAProxy of this node.

    Parameters
    ----------
    folder : Path
        That of HAProxy's admin socket.
    backend : str
    held_ms : float or None
        How long a request may be held; None if its application may be scaled to zero.
    """
    note, text = _note(folder, backend), _FOR_EVER if held_ms is None else f"{held_ms:.0f}"
    with suppress(OSError):  # there is no HAProxy on this node
        if note.exists() and note.read_text() == text:
            return
        unfinished = note.with_suffix(f".{os.getpid()}")
        unfinished.write_text(text)
        unfinished.replace(note)


def held_ms(folder: Path, always_served: Collection[str]) -> dict[str, int]:
    """Return how long requests may be held, for the backends where that is limited.

    Parameters
    ----------
    folder : Path
        That of HAProxy's admin socket.
    always_served : collection of str
        The backends that were never to be scaled to zero when Ray was started.
    """
    limits = {}
    for backend in filter(None, always_served):
        note = _note(folder, backend)
        text = note.read_text() if note.exists() else str(HELD_MS)
        if text != _FOR_EVER:
            limits[backend] = int(text)
    return limits


def _note(folder: Path, backend: str) -> Path:
    return folder / f"{backend}.held"
