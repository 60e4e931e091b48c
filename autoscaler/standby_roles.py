"""Which replicas of a deployment serve, and which stand by: decided in one place, told to all.

Ray knows replicas only. It orders those that serve and the standbys together, and which of them it
stops or replaces, and when, nobody can tell it. So the autoscaler divides those that run, and
publishes the outcome in Ray's key-value store, where each replica finds its own part
(`deployments.control.standby_role`). Ray's own ranks would not do: the rank of a replica that dies
stays free until its replacement has started, and a standby is to take its place at once.

Publications are numbered. A replica that has followed one never follows an older one.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace

import orjson

from autoscaler.reports import ReplicaReport
from autoscaler.store import Store

#: Replicas whose reports have not followed a publication after this time are told again.
TELL_AGAIN_AFTER_S = 5.0


def roles_key(application: str, deployment: str) -> str:
    """Return the key under which the roles of a deployment's replicas are published."""
    return f"roles#{application}#{deployment}"


@dataclass(frozen=True)
class StandbyRoles:
    """The roles of a deployment's replicas.

    Attributes
    ----------
    number : int
        Greater than that of any earlier publication; 0 if there was none.
    ordered : int
        Standbys that are ordered, whether they run or not.
    serving, standbys : tuple of str
        Ids of the replicas that serve, and of those that stand by, the oldest first.
    newcomers_stand_by : bool
        Whether replicas that are in neither stand by.
    """

    number: int = 0
    ordered: int = 0
    serving: tuple[str, ...] = ()
    standbys: tuple[str, ...] = ()
    newcomers_stand_by: bool = False

    def stands_by(self, replica_id: str) -> bool:
        """Return whether a replica is to stand by."""
        if replica_id in self.standbys:
            return True
        return self.newcomers_stand_by and replica_id not in self.serving

    def divided(self, running: Sequence[str], replicas: int, standbys: int) -> "StandbyRoles":
        """Return the roles of the replicas that run, with as few changes as possible.

        Parameters
        ----------
        running : sequence of str
            Ids of the replicas that run, the oldest first.
        replicas, standbys : int
            How many are to serve, and how many are to stand by. As long as any replica runs, one
            serves.

        Returns
        -------
        StandbyRoles
            With the same number.
        """
        # Those that serve already come first, and of them the oldest.
        serving = set(sorted(running, key=self.stands_by)[: max(1, replicas)])
        return StandbyRoles(
            self.number,
            standbys,
            tuple(one for one in running if one in serving),
            tuple(one for one in running if one not in serving),
            newcomers_stand_by=standbys > 0 and len(serving) >= replicas,
        )

    def to_bytes(self) -> bytes:
        """Return the roles as they are published."""
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
    """The roles of one deployment's replicas, as last published.

    Parameters
    ----------
    application, deployment : str
        Names.
    store : Store

    Attributes
    ----------
    roles : StandbyRoles
    """

    def __init__(self, application: str, deployment: str, store: Store) -> None:
        self.roles = StandbyRoles()
        self._key = roles_key(application, deployment)
        self._store = store
        self._published_s = 0.0
        self._loading: Future[bytes | None] | None = store.load(self._key)

    def is_loaded(self) -> bool:
        """Return whether the last publication has been read, by whichever process it was."""
        if self._loading is not None and self._loading.done():
            self.roles = StandbyRoles.from_bytes(self._loading.result()) or self.roles
            self._loading = None
        return self._loading is None

    def standbys_of(self, running: Iterable[str]) -> int:
        """Return how many of the replicas that run stand by, or are to."""
        return sum(map(self.roles.stands_by, running))

    def publish(
        self,
        now_s: float,
        running: Sequence[str],
        replicas: int,
        standbys: int,
        reports: Iterable[ReplicaReport] = (),
    ) -> None:
        """Divide the replicas that run, and tell them if anything has changed.

        Nothing is published as long as there were never any standbys.

        Parameters
        ----------
        now_s : float
        running, replicas, standbys
            As for `StandbyRoles.divided`.
        reports : iterable of ReplicaReport
            The latest ones, which tell who follows.
        """
        if not (standbys or self.roles.number):
            return
        roles = self.roles.divided(running, replicas, standbys)
        if roles == self.roles and not self._is_forgotten(now_s, reports):
            return
        # Milliseconds, so that a process that knows of no publication goes on above the last one.
        roles = replace(roles, number=max(self.roles.number + 1, round(1e3 * now_s)))
        self.roles, self._published_s = roles, now_s
        self._store.save(self._key, roles.to_bytes)

    def delete(self) -> None:
        """Delete what was published."""
        self._store.delete(self._key)

    def _is_forgotten(self, now_s: float, reports: Iterable[ReplicaReport]) -> bool:
        """Return whether more or fewer replicas serve than were told to, by what they report.

        A standby that serves in place of a replica that hangs is left to it.
        """
        if now_s < self._published_s + TELL_AGAIN_AFTER_S:
            return False
        fresh = [one for one in reports if one.time_s > now_s - TELL_AGAIN_AFTER_S]
        told_to_serve = [one for one in fresh if not self.roles.stands_by(one.replica_id)]
        serving = [one for one in fresh if not one.standby]
        return len(serving) > len(self.roles.serving) or len(serving) < len(told_to_serve)
