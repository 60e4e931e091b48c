"""A replica's role: whether it serves or stands by.

The autoscaler publishes the standbys (`autoscaler.standbys`). A replica that finds nothing
published serves; so does one that can no longer read it. A standby fails the load balancer's checks
and so gets no requests. The few that still reach it, before the balancer knows or by handle, it
answers like any replica: no other one could answer those by handle, and so none is lost.

A standby also serves if it sees that nobody else does: it asks the HAProxy of its node at the admin
socket. So it takes over as soon as HAProxy misses the last replica, and before Serve's controller
does. Until then, HAProxy hands requests to Serve's own proxy, which finds the standby.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable

from autoscaler.standbys import StandbyRoles

logger = logging.getLogger("sojourn.service")

#: Interval at which a replica that serves reads its role, and at which a standby does.
SERVING_PERIOD_S = 1.0
STANDBY_PERIOD_S = 0.25
#: A standby that has not found its role for this long serves.
UNKNOWN_AFTER_S = 10.0


class StandbyRole:
    """Whether this replica stands by.

    `read` returns what is published, or None; it may block, so a thread calls it.
    """

    def __init__(
        self,
        replica_id: str,
        read: Callable[[], bytes | None],
        nobody_serves: Callable[[], Awaitable[bool]] | None = None,
        on_change: Callable[[bool], None] = lambda standby: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._replica_id = replica_id
        self._read = read
        self._nobody_serves = nobody_serves
        self._on_change = on_change
        self._clock = clock
        self._may_stand_by = False
        self.standby = False
        self._number = 0
        self._found_s = -math.inf

    @property
    def period_s(self) -> float:
        """Time until `follow` is to be called again."""
        return STANDBY_PERIOD_S if self.standby else SERVING_PERIOD_S

    async def configure(self, standbys: int | str) -> None:
        """Follow a changed setting `autoscaler.standbys`; without standbys, this replica serves."""
        self._may_stand_by = standbys != 0
        await self.follow()

    async def follow(self) -> None:
        content = await asyncio.to_thread(self._read) if self._may_stand_by else None
        roles = StandbyRoles.from_bytes(content)
        if not self._may_stand_by:
            self._set(False, "its configuration has no standbys")
        elif roles is None:
            if self._clock() >= self._found_s + UNKNOWN_AFTER_S:
                self._set(False, "no list of standbys is published")
        else:
            self._found_s = self._clock()
            if roles.number > self._number:
                self._number = roles.number
                self._set(roles.stands_by(self._replica_id), "so the autoscaler decided")
        if self.standby and self._nobody_serves is not None and await self._nobody_serves():
            self._set(False, "no other replica is up")  # until the autoscaler says otherwise

    def _set(self, standby: bool, reason: str) -> None:
        if standby != self.standby:
            self.standby = standby
            logger.info("this replica %s: %s", "stands by" if standby else "serves", reason)
            self._on_change(standby)
