"""When Serve's own proxy gets the requests that no replica can take.

The proxy holds a request until there is a replica. It has to where an application may be scaled to
zero: it is those requests that bring the first replica back. Where an application always has
replicas, they have died or are about to start: clients should rather be told at once to try again.
So HAProxy starts with the proxy disabled there (`deployments.haproxy.ray_config.amend`).

Which applications always have replicas was written down when Ray was started. Where a later
deployment lifts that, the replicas leave a note for HAProxy on their node, so that the proxy is
enabled at once. On other nodes it is enabled after `PATIENCE_S` without a replica.
"""

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from deployments.haproxy.server_checks import Server

#: Longer than most replicas take to start.
PATIENCE_S = 300.0


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


def _note(folder: Path, backend: str) -> Path:
    return folder / f"{backend}.may-have-none"


class Fallback:
    """Follows the servers of some backends, and says when their backup is to be used.

    Parameters
    ----------
    always_served : collection of str
        The backends that are never scaled to zero, as it was when Ray was started.
    folder : Path
        That of HAProxy's admin socket.
    """

    def __init__(self, always_served: Collection[str], folder: Path) -> None:
        self._always_served, self._folder = always_served, folder
        self._alone_since_s: dict[str, float] = {}

    @property
    def always_served(self) -> frozenset[str]:
        """The backends that are never scaled to zero, as far as it is known here."""
        return frozenset(
            one for one in self._always_served if not _note(self._folder, one).exists()
        )

    def look(self, servers: list[Server], now_s: float) -> list[str]:
        """Return HAProxy's commands, if any.

        Parameters
        ----------
        servers : list of Server
        now_s : float
            On a clock that never steps.
        """
        always_served = self.always_served
        served = {one.backend for one in servers if one.up and not one.backup}
        alone = [
            one
            for one in servers
            if one.backup and one.backend in self._always_served and one.backend not in served
        ]
        self._alone_since_s = {one.path: self._alone_since_s.get(one.path, now_s) for one in alone}
        return [
            f"set server {one.path} state ready"
            for one in alone
            if one.disabled
            and (
                one.backend not in always_served
                or now_s >= self._alone_since_s[one.path] + PATIENCE_S
            )
        ] + [
            f"set server {one.path} state maint"
            for one in servers
            if one.backup
            and one.backend in always_served
            and one.backend in served
            and not one.disabled
        ]
