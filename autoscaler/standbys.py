"""Standbys: replicas whose process is up and whose model is at hand, but which take no traffic.

A standby becomes a replica in seconds (`standby_s`); a new standby, or a replica without one, takes
minutes (`cold_s`). So replicas need only cover the demand until a standby could serve, and replicas
and standbys together the demand until a cold start could.

How many standbys pay follows from the risk and the price. A replica pays as long as the chance that
it is needed exceeds its price over what a shortage costs (the newsvendor's rule; Arrow, Harris and
Marschak, Optimal inventory policy, Econometrica 19, 1951): risk = 1 / (1 + u), if a shortage costs
u times what a replica costs. A standby at the price p then pays up to the risk p / (p + u), so a
cheap reserve is a large one.

Their number may also be set. Standbys then take the place of as many of the replicas that a cold
start would require, and if fewer are required, they are kept besides.

Which replicas serve is published in Ray's key-value store, where each replica finds its own role
(`deployments.control.standby_role`): Ray knows replicas only, and decides itself which of them it
stops or replaces. Publications are numbered. A replica that has followed one never follows an older
one.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace

import orjson

from autoscaler.reports import ReplicaReport
from autoscaler.store import Store

#: Time until a standby of the real service serves, and its first report of that has come.
PROMOTION_S = 3.0
#: The cost of a standby, as a share of a replica.
STANDBY_PRICE = 0.3
#: If reports do not follow a publication after this time, it is published again.
PUBLISH_AGAIN_AFTER_S = 5.0


@dataclass(frozen=True)
class TwoTierStarts:
    """How long starts take from a standby (`standby_s`), and without one, at least as long.

    A new standby takes `cold_s`, too.
    """

    standby_s: float
    cold_s: float


def standby_risk(risk: float, price: float = STANDBY_PRICE) -> float:
    """Return the risk up to which a standby pays where `risk` is that of a replica."""
    return price * risk / (price * risk + 1 - risk)


def roles_key(application: str, deployment: str) -> str:
    """Return the key under which the roles of a deployment's replicas are published."""
    return f"roles#{application}#{deployment}"


@dataclass(frozen=True)
class StandbyRoles:
    """The roles of a deployment's replicas, by their ids, the oldest first.

    `number` is greater than that of any earlier publication; 0 if there was none. `ordered`
    standbys are ordered, whether they run or not.
    """

    number: int = 0
    ordered: int = 0
    serving: tuple[str, ...] = ()
    standbys: tuple[str, ...] = ()
    newcomers_stand_by: bool = False

    def stands_by(self, replica_id: str) -> bool:
        if replica_id in self.standbys:
            return True
        return self.newcomers_stand_by and replica_id not in self.serving

    def divided(self, running: Sequence[str], replicas: int, standbys: int) -> "StandbyRoles":
        """Return the roles of running replicas, the oldest first, with as few changes as possible.

        As long as any replica runs, one serves.
        """
        # Replicas that serve already come first, and of them the oldest.
        serving = set(sorted(running, key=self.stands_by)[: max(1, replicas)])
        return StandbyRoles(
            self.number,
            standbys,
            tuple(one for one in running if one in serving),
            tuple(one for one in running if one not in serving),
            newcomers_stand_by=standbys > 0 and len(serving) >= replicas,
        )

    def to_bytes(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def from_bytes(cls, content: bytes | None) -> "StandbyRoles | None":
        """Read what was published; None if it is not usable."""
        try:
            read = orjson.loads(content or b"")
            return cls(
                int(read["number"]),
                int(read["ordered"]),
                tuple(map(str, read["serving"])),
                tuple(map(str, read["standbys"])),
                newcomers_stand_by=bool(read["newcomers_stand_by"]),
            )
        except (ValueError, TypeError, KeyError):
            return None


class RolesPublisher:
    """The roles of one deployment's replicas, as last published."""

    def __init__(self, application: str, deployment: str, store: Store) -> None:
        self.roles = StandbyRoles()
        self._key = roles_key(application, deployment)
        self._store = store
        self._published_s = 0.0
        self._loading: Future[bytes | None] | None = store.load(self._key)

    def is_loaded(self) -> bool:
        """Return whether the last publication, of whichever process, has been read."""
        if self._loading is not None and self._loading.done():
            self.roles = StandbyRoles.from_bytes(self._loading.result()) or self.roles
            self._loading = None
        return self._loading is None

    def standbys_of(self, running: Iterable[str]) -> int:
        """Return how many of the replicas that run are on standby."""
        return sum(map(self.roles.stands_by, running)) if self.roles.number else 0

    def publish(
        self,
        now_s: float,
        running: Sequence[str],
        replicas: int,
        standbys: int,
        reports: Iterable[ReplicaReport] = (),
    ) -> None:
        """Divide the replicas that run, and publish their roles if anything has changed.

        Nothing is published as long as there were never any standbys. The latest reports show
        whether replicas follow.
        """
        if not (standbys or self.roles.number):
            return
        roles = self.roles.divided(running, replicas, standbys)
        if roles == self.roles and self._is_followed(now_s, reports):
            return
        # Milliseconds, so that a process without an earlier publication counts on above the last.
        roles = replace(roles, number=max(self.roles.number + 1, round(1e3 * now_s)))
        self.roles, self._published_s = roles, now_s
        self._store.save(self._key, roles.to_bytes)

    def delete(self) -> None:
        self._store.delete(self._key)

    def _is_followed(self, now_s: float, reports: Iterable[ReplicaReport]) -> bool:
        """Return whether as many replicas report to serve as were published, or it is too early.

        A standby may serve in place of a replica that hangs.
        """
        if now_s < self._published_s + PUBLISH_AGAIN_AFTER_S:
            return True
        fresh = [one for one in reports if one.time_s > now_s - PUBLISH_AGAIN_AFTER_S]
        should_serve = sum(not self.roles.stands_by(one.replica_id) for one in fresh)
        serving = sum(not one.standby for one in fresh)
        return should_serve <= serving <= len(self.roles.serving)
