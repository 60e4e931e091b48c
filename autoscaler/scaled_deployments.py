"""The deployments that this process scales, each with its autoscaler, its history and its log.

Ray makes a new policy object at every change of the config, and Serve's controller may be killed
and started again. So what an autoscaler has learned lives here, for as long as the process, and is
written every few seconds to a `Store` that outlives it; a new process goes on from there.

An application that is deleted leaves its history, some 50 kB a deployment, in the store: deployed
again under its name, it goes on with it. A process that knew it removes it an hour later, as a new
deployment comes; what no process knows any more ends with the cluster.
"""

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Protocol

import orjson

from autoscaler.controller import Autoscaler
from autoscaler.decision import Decision
from autoscaler.decision_log import DecisionLog
from autoscaler.reports import ReplicaReport
from policy.errors import InvalidInputError

logger = logging.getLogger("ray.serve")

#: The state is written this often, and whenever the number of replicas changes.
SAVE_PERIOD_S = 10.0
#: A deployment that was not asked for in this long is gone: its state is deleted.
FORGOTTEN_AFTER_S = 3600.0


class Store(Protocol):
    """Keeps bytes where they outlive this process; every method returns at once."""

    def load(self, key: str) -> "Future[bytes | None]":
        """Read what was saved under `key`; None where there is nothing, or it cannot be had."""

    def save(self, key: str, content: bytes) -> "Future[None]":
        """Write `content` under `key`."""

    def delete(self, key: str) -> None:
        """Remove what is under `key`."""


def state_key(application: str, deployment: str) -> str:
    """Give the key under which a deployment's autoscaler keeps what it learned."""
    return f"state#{application}#{deployment}"


def log_key(application: str, deployment: str) -> str:
    """Give the key under which a deployment's latest decisions are."""
    return f"decisions#{application}#{deployment}"


class ScaledDeployment:
    """One deployment: its autoscaler, what it decided, and what is kept of both.

    Parameters
    ----------
    application, deployment : str
    store : Store
    """

    def __init__(self, application: str, deployment: str, store: Store) -> None:
        self.application, self.deployment = application, deployment
        self.autoscaler = Autoscaler()
        self.log = DecisionLog()
        self.dry_run = False
        self.asked_s = 0.0
        self.reports: Sequence[ReplicaReport] = ()
        self._store = store
        self._saved_s = 0.0
        self._saving: list[Future[None]] = []
        self._loading: tuple[Future[bytes | None], Future[bytes | None]] | None = (
            store.load(state_key(application, deployment)),
            store.load(log_key(application, deployment)),
        )

    def decide(
        self,
        now_s: float,
        reports: Sequence[ReplicaReport],
        *,
        target_replicas: int,
        ready_replicas: int,
        min_replicas: int,
        max_replicas: int,
        waiting: float = 0.0,
        dry_run: bool | None = None,
    ) -> Decision:
        """Decide, but say nothing of it yet: `note` does when it is known what is made of it.

        Parameters
        ----------
        now_s : float
            On the clock of the reports.
        reports : sequence of ReplicaReport
            The latest of each replica.
        target_replicas : int
            Replicas ordered so far.
        ready_replicas : int
            Those of them that serve.
        min_replicas, max_replicas : int
            Bounds.
        waiting : float
            Requests that wait where there is no replica to take them.
        dry_run : bool or None
            Whether only to say what would be done; None: as it was the last time.

        Returns
        -------
        Decision
            In a dry run its `replicas` are those it would order; nobody must order them.
        """
        self.asked_s, self.reports = now_s, reports
        loaded = self._loaded()
        if dry_run is not None:
            self.dry_run = dry_run
        if not loaded:
            return Decision(target_replicas, f"hold {target_replicas}: the history is being read")
        self.autoscaler.observe(reports)
        decision = self.autoscaler.decide(
            now_s,
            current_replicas=target_replicas,
            ready_replicas=ready_replicas,
            min_replicas=min_replicas,
            max_replicas=max_replicas,
            waiting=waiting,
        )
        if self.dry_run:
            decision = replace(decision, reason=f"dry run: would {decision.reason}")
        return decision

    def note(self, now_s: float, target_replicas: int, decision: Decision) -> bool:
        """Take `decision` into the log, and save what is due.

        Returns
        -------
        bool
            Whether it was noted as one of the latest hundred.
        """
        if self._loading is not None:
            return False
        noted = self.log.add(now_s, target_replicas, decision)
        overdue = not 0 <= now_s - self._saved_s < SAVE_PERIOD_S
        # The store may be slow: then what is newest is saved when it has caught up.
        if (noted or overdue) and all(saved.done() for saved in self._saving):
            self._saved_s = now_s
            self._save()
        return noted

    def delete(self) -> None:
        """Remove all that is kept of this deployment."""
        self._store.delete(state_key(self.application, self.deployment))
        self._store.delete(log_key(self.application, self.deployment))

    def _save(self) -> None:
        state = {"dry_run": self.dry_run, "autoscaler": self.autoscaler.state_dict()}
        log = {
            "application": self.application,
            "deployment": self.deployment,
            "dry_run": self.dry_run,
            "newest": self.log.newest,
            "decisions": self.log.noted,
        }
        # A decision may hold infinity, which JSON does not know: it becomes null.
        self._saving = [
            self._store.save(key(self.application, self.deployment), orjson.dumps(content))
            for key, content in ((state_key, state), (log_key, log))
        ]

    def _loaded(self) -> bool:
        if self._loading is None:
            return True
        if not all(loading.done() for loading in self._loading):
            return False
        done, self._loading = self._loading, None
        state, log = (_table(loading.result()) for loading in done)
        if "autoscaler" in state:
            try:
                self.autoscaler.load_state(state["autoscaler"])
            except InvalidInputError as error:
                logger.warning("%s: its history is not taken up: %s", self.deployment, error)
            self.dry_run = bool(state.get("dry_run"))
        self.log = DecisionLog(log.get("decisions", ()))
        return True


_deployments: dict[tuple[str, str], ScaledDeployment] = {}


def scaled_deployment(
    now_s: float, application: str, deployment: str, store: Store
) -> ScaledDeployment:
    """Give the deployment's entry, and remove those nobody has asked for in an hour."""
    found = _deployments.get((application, deployment))
    if found is None:
        found = _deployments[application, deployment] = ScaledDeployment(
            application, deployment, store
        )
        found.asked_s = now_s
        for key, entry in list(_deployments.items()):
            if now_s - entry.asked_s > FORGOTTEN_AFTER_S:
                entry.delete()
                del _deployments[key]
    return found


def _table(content: bytes | None) -> Mapping[str, Any]:
    """Read a saved table; an empty one where there is none."""
    if content is None:
        return {}
    try:
        table = orjson.loads(content)
    except orjson.JSONDecodeError:
        return {}
    return table if isinstance(table, dict) else {}
