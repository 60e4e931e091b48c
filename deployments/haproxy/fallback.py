"""When Serve's own proxy gets the requests that no replica can take.

The proxy holds a request until there is a replica. It has to where an application may be scaled to
zero: it is those requests that bring the first replica back. Where an application always has
replicas, they have died or are about to start: clients should rather be told at once to try again.
So HAProxy starts with the proxy disabled there (`deployments.haproxy.ray_config.amend`).

Which applications always have replicas was written down when Ray was started. A later deployment
may have lifted that, so the proxy is enabled after `PATIENCE_S` without a replica.
"""

from collections.abc import Collection

from deployments.haproxy.server_checks import Server

#: Longer than most replicas take to start.
PATIENCE_S = 300.0


class Fallback:
    """Follows the servers of some backends, and says when their backup is to be used.

    Parameters
    ----------
    always_served : collection of str
        The backends that are never scaled to zero.
    """

    def __init__(self, always_served: Collection[str]) -> None:
        self._always_served = always_served
        self._alone_since_s: dict[str, float] = {}

    def look(self, servers: list[Server], now_s: float) -> list[str]:
        """Return HAProxy's commands, if any.

        Parameters
        ----------
        servers : list of Server
        now_s : float
            On a clock that never steps.
        """
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
            if one.disabled and now_s >= self._alone_since_s[one.path] + PATIENCE_S
        ] + [
            f"set server {one.path} state maint"
            for one in servers
            if one.backup
            and one.backend in self._always_served
            and one.backend in served
            and not one.disabled
        ]
