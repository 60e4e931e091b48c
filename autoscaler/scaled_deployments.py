"""The registry of the deployments that this process scales.

Each entry, a `ScaledDeployment`, holds a deployment's autoscaler with all that it has learned, the
log of its decisions, and whether it is in a dry run. Entries are registered by application and
deployment name, on the first request for them (`scaled_deployment`).

Ray makes a new policy object at every change of the config, and Serve's controller may be killed
and restarted. So the entries live in this module, for as long as the process does, and are written
every few seconds to a `Store` that outlives it; a new process resumes from there.

The history of a deleted application, about 50 kB per deployment, stays in the store. If the
application is deployed again under the same name, it resumes from it. A process that knew the
application deletes its history after an hour, when another deployment is registered. History that
no process knows any more disappears with the cluster.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import orjson

from autoscaler.controller import Autoscaler
from autoscaler.decision import Decision, DecisionLog, FleetState
from autoscaler.history.feed import HistoryFeed
from autoscaler.observe.fleet_monitor import SLOW_INTERVAL_S
from autoscaler.reports import ReplicaReport
from autoscaler.standbys import RolesPublisher
from autoscaler.store import Store
from policy.errors import InvalidInputError

logger = logging.getLogger("ray.serve")

#: How often the state is saved; it is also saved when the number of replicas changes.
SAVE_PERIOD_S = 10.0
#: A state that was saved later than now by more, under a clock that was ahead, is dropped: nothing
#: new would be learned until the clock is there again.
_CLOCK_AHEAD_S = 60.0
#: A deployment that has not been asked for this long counts as deleted, and so is its state.
FORGOTTEN_AFTER_S = 3600.0


def state_key(application: str, deployment: str) -> str:
    return f"state#{application}#{deployment}"


def log_key(application: str, deployment: str) -> str:
    return f"decisions#{application}#{deployment}"


def history_key(application: str, deployment: str) -> str:
    return f"history#{application}#{deployment}"


class ScaledDeployment:
    """One deployment with its autoscaler, its log of decisions, and their saved copies.

    `roles` says which replicas are on standby. In a dry run, decisions are only recorded.
    """

    def __init__(self, application: str, deployment: str, store: Store) -> None:
        self.application, self.deployment = application, deployment
        self.autoscaler = Autoscaler()
        self.log = DecisionLog()
        self.roles = RolesPublisher(application, deployment, store)
        self.dry_run = False
        self.last_asked_s = 0.0
        self.reports: Sequence[ReplicaReport] = ()
        self._store = store
        self._decided = 0
        self._running: Sequence[str] = ()
        self._saved_s = 0.0
        self._report_trouble = ""
        self._saving: list[Future[None]] = []
        key = history_key(application, deployment)
        self._history = HistoryFeed(deployment, lambda: store.load(key))
        self._loading: tuple[Future[bytes | None], Future[bytes | None]] | None = (
            store.load(state_key(application, deployment)),
            store.load(log_key(application, deployment)),
        )

    def decide(
        self,
        now_s: float,
        reports: Sequence[ReplicaReport],
        fleet: FleetState,
        *,
        weight: float = 1.0,
        running: Sequence[str] = (),
        dry_run: bool | None = None,
        history: int = 0,
    ) -> Decision:
        """Decide, without recording it yet: the caller may still change it before `record`.

        `fleet` counts replicas and standbys together; `running` lists the ids of the running ones,
        the oldest first. If the latest reports are a sample, each stands for `weight` replicas.
        `dry_run` of None: as at the last time. `history` is the code of what replicas have stored
        of it; 0 if nothing.
        """
        self.last_asked_s, self.reports, self._running = now_s, reports, running
        is_loaded = self._is_loaded(now_s)
        if dry_run is not None:
            self.dry_run = dry_run
        if not is_loaded:
            current = fleet.current_replicas
            return Decision(current, f"hold {current}: the history is being read")
        self.autoscaler.observe(reports, now_s, weight)
        ordered = self._standbys_among(fleet.current_replicas)
        ready = self.roles.standbys_of(running)
        decision = self.autoscaler.decide(
            now_s,
            replace(
                fleet,
                current_replicas=fleet.current_replicas - ordered,
                ready_replicas=max(0, fleet.ready_replicas - ready),
                current_standbys=ordered,
                ready_standbys=ready,
            ),
        )
        self._decided = decision.replicas
        self._log_trouble(decision)
        self._history.follow(now_s, history, self.autoscaler)
        if self.dry_run:
            decision = replace(decision, reason=f"dry run: would {decision.reason}")
        return decision

    def _standbys_among(self, ordered: int) -> int:
        return min(self.roles.roles.ordered, max(0, ordered - 1))

    def _log_trouble(self, decision: Decision) -> None:
        """Log once that replicas do not start or do not report in time, and once that all do."""
        trouble = ""
        if decision.stuck_replicas:
            trouble = "some replicas do not start; is there room for them on the cluster?"
        elif decision.silent_replicas:
            trouble = "some replicas serve but do not report; their share of the load is estimated"
        elif (decision.report_interval_s or 0.0) >= SLOW_INTERVAL_S:
            trouble = "reports come too slowly; set metrics_interval_s: 1 in the autoscaling_config"
        elif decision.report_interval_s is None:
            return
        if trouble != self._report_trouble:
            self._report_trouble = trouble
            if trouble:
                logger.warning("%s: %s", self.deployment, trouble)
            else:
                logger.info("%s: all replicas serve and report in time again", self.deployment)

    def record(self, now_s: float, target_replicas: int, decision: Decision) -> bool:
        """Add `decision` to the log, tell the replicas who serves, and save the state if it is due.

        `target_replicas` were ordered until now, with standbys. Return whether the log recorded it.
        """
        if self._loading is not None:
            return False
        if decision.replicas < self._decided:
            self.autoscaler.note_limited(now_s)
        serving = target_replicas - self._standbys_among(target_replicas)
        recorded = self.log.add(now_s, serving, decision)
        if not self.dry_run:
            self.roles.publish(
                now_s, self._running, decision.replicas, decision.standbys, self.reports
            )
        overdue = not 0 <= now_s - self._saved_s < SAVE_PERIOD_S
        # If the store is slow, wait until it has caught up, and then save the newest state.
        if (recorded or overdue) and all(saved.done() for saved in self._saving):
            self._saved_s = now_s
            self._save(now_s)
        return recorded

    def delete(self) -> None:
        self._store.delete(state_key(self.application, self.deployment))
        self._store.delete(log_key(self.application, self.deployment))
        self._store.delete(history_key(self.application, self.deployment))
        self.roles.delete()

    def _save(self, now_s: float) -> None:
        # A decision must not wait for the packing of the state, which takes milliseconds.
        dry_run, autoscaler = self.dry_run, self.autoscaler.snapshot()
        history = self._history.settled
        log = {
            "application": self.application,
            "deployment": self.deployment,
            "dry_run": dry_run,
            "newest": self.log.newest,
            "decisions": self.log.recorded,
        }
        # JSON has no infinity, which a decision may hold; orjson writes null.
        self._saving = [
            self._store.save(
                state_key(self.application, self.deployment),
                lambda: orjson.dumps(
                    {
                        "time_s": now_s,
                        "dry_run": dry_run,
                        "history": history,
                        "autoscaler": autoscaler(),
                    }
                ),
            ),
            self._store.save(log_key(self.application, self.deployment), lambda: orjson.dumps(log)),
        ]

    def _is_loaded(self, now_s: float) -> bool:
        """Return whether the saved state has been read; restore it when it arrives."""
        if self._loading is None:
            return True
        if not self.roles.is_loaded() or not all(loading.done() for loading in self._loading):
            return False
        done, self._loading = self._loading, None
        state, log = (_parse_dict(loading.result()) for loading in done)
        if state.get("time_s", -math.inf) > now_s + _CLOCK_AHEAD_S:
            logger.warning("%s: saved autoscaler state dropped: it is ahead", self.deployment)
        elif "autoscaler" in state:
            try:
                self.autoscaler.load_state(state["autoscaler"])
            except InvalidInputError as error:
                logger.warning("%s: saved autoscaler state dropped: %s", self.deployment, error)
            else:
                settled = state.get("history")
                self._history.settled = settled if isinstance(settled, int) else 0
            self.dry_run = bool(state.get("dry_run"))
        self.log = DecisionLog(log.get("decisions", ()))
        return True


_deployments: dict[tuple[str, str], ScaledDeployment] = {}


def scaled_deployment(
    now_s: float, application: str, deployment: str, store: Store
) -> ScaledDeployment:
    """Return the deployment's entry; a new one replaces those that were not used for an hour.

    A new entry reads and saves its state in the store.
    """
    found = _deployments.get((application, deployment))
    if found is None:
        found = _deployments[application, deployment] = ScaledDeployment(
            application, deployment, store
        )
        found.last_asked_s = now_s
        for key, entry in list(_deployments.items()):
            if now_s - entry.last_asked_s > FORGOTTEN_AFTER_S:
                entry.delete()
                del _deployments[key]
    return found


def _parse_dict(content: bytes | None) -> Mapping[str, Any]:
    """Parse a saved dict; return an empty one if there is none or it is broken."""
    if content is None:
        return {}
    try:
        parsed = orjson.loads(content)
    except orjson.JSONDecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
