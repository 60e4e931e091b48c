"""The state of a running service, as its replicas and its autoscaler report it."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from deployments.access.credentials import read_token
from deployments.local.urls import ask, check_url
from policy.errors import InvalidInputError

Document = Mapping[str, Any]

ASK_TIMEOUT_S = 2.0
#: A replica that no poll has reached for this long is gone.
FORGET_AFTER_S = 15.0
#: Each poll reaches any replica behind the balancer, so a round polls once per replica, up to this.
MAX_POLLS = 32
DECISIONS_SHOWN = 8
PERCENTILES = ("50", "95", "99")
RATES = ("completed", "refused", "late", "failed")
_OF_REPLICA = ("bottleneck", "queue_length", "control_limit", "table", "sla_rate_per_s")
#: Counters of refused requests begin with this and end with the reason.
_REFUSED = "refused_"


class ServiceView:
    """The state of a running service, combined from the answers to polls.

    `ask` returns the JSON object at a path of the service; it raises `InvalidInputError`.
    """

    def __init__(
        self, url: str, ask: Callable[[str], Any], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.url, self._ask, self._clock = url, ask, clock
        self.failure: str | None = None
        self._autoscaler: Document = {}
        #: The newest answer of each replica, and when it came.
        self._replicas: dict[str, tuple[float, Document]] = {}

    def poll(self) -> None:
        """Poll the autoscaler and the replicas; raise `InvalidInputError` if none answers."""
        self._autoscaler = self._ask("/sojourn/autoscaler")
        newest = self._autoscaler.get("newest") or {}
        replicas = max(1, int(newest.get("replicas") or 1))
        # Eight polls of two replicas miss one of them once in 128 times.
        for _ in range(1 if replicas == 1 else min(MAX_POLLS, 4 * replicas)):
            document = self._ask("/sojourn/policy")
            if "last_minute" not in document:
                raise InvalidInputError(
                    f"{self.url}/sojourn/policy is not that of a Sojourn service"
                )
            if "stages" in document:
                document = {**document, **self._ask("/sojourn/pipeline")}
            self._replicas[document.get("replica") or "-"] = self._clock(), document
        self.failure = None
        for name, (at_s, _) in [*self._replicas.items()]:
            if at_s < self._clock() - FORGET_AFTER_S:
                del self._replicas[name]

    def snapshot(self) -> dict[str, Any]:
        """Return the state of the service, ready for JSON."""
        newest = [document for _, (_, document) in sorted(self._replicas.items())]
        first = newest[0] if newest else {}
        replicas = [*map(_replica, newest)]
        known = [each["rates"] for each in replicas if each["rates"]]
        refusals = {key for each in known for key in each if key.startswith(_REFUSED)}
        percentile = (first.get("sla") or {}).get("percentile")
        decision = self._autoscaler.get("newest")
        return {
            "url": self.url,
            "model": first.get("model"),
            "unreachable": self.failure,
            "config_error": next(filter(None, (each.get("config_error") for each in newest)), None),
            "model_error": next(filter(None, map(_last_model_error, newest)), None),
            "sla_in_words": first.get("sla_in_words"),
            "sla_share": None if percentile is None else round(percentile / 100, 10),
            "in_time": _share_in_time([each["last_minute"] for each in newest]),
            "offered_per_s": (decision or {}).get("arrival_rate_per_s"),
            **{f"{key}_per_s": sum(r[key] for r in known) if known else None for key in RATES},
            "refused_per_s_by_reason": {
                key.removeprefix(_REFUSED): rate
                for key in sorted(refusals)
                if (rate := sum(each.get(key, 0.0) for each in known))
            },
            "response_ms": {
                kind: _mean_percentiles([each[f"{kind}_ms"] for each in replicas])
                for kind in ("measured", "predicted")
            },
            "replicas": replicas,
            "stages": first.get("stages"),
            "dry_run": bool(self._autoscaler.get("dry_run")),
            "newest": decision,
            "decisions": [*self._autoscaler.get("decisions", ())][-DECISIONS_SHOWN:],
            "lost_replicas": [*self._autoscaler.get("lost_replicas", ())][-DECISIONS_SHOWN:],
        }


def _replica(document: Document) -> dict[str, Any]:
    minute = document["last_minute"]
    seconds, in_time = minute["seconds"], _share_in_time([minute])
    return {
        "replica": document.get("replica") or "-",
        "rates": {
            key: minute.get(key, 0) / seconds
            for key in (*RATES, *minute)
            if key in RATES or key.startswith(_REFUSED)
        }
        if seconds
        else {},
        **{key: document.get(key) for key in _OF_REPLICA},
        "in_time": in_time,
        "memory_bytes": document["process"]["memory_bytes"],
        # Measured are those of the last second with answers, however long ago.
        "measured_ms": {} if in_time is None else document.get("measured_ms") or {},
        "predicted_ms": document.get("predicted_ms") or {},
    }


def _share_in_time(minutes: list[Document]) -> float | None:
    """Return the share in time of what counts for the SLA; a failed request is not in time."""
    answered, late, failed = (
        sum(minute.get(key, 0) for minute in minutes) for key in ("answered", "late", "failed")
    )
    return max(0.0, 1 - (late + failed) / (answered + failed)) if answered + failed else None


def _last_model_error(document: Document) -> str | None:
    return (document.get("model_errors") or {}).get("last")


def _mean_percentiles(replicas: list[Document]) -> dict[str, float]:
    found = {key: [each[key] for each in replicas if key in each] for key in PERCENTILES}
    return {key: sum(values) / len(values) for key, values in found.items() if values}


def is_sla_kept(snapshot: Document) -> bool:
    """Return whether the SLA was met in the last minute; an idle service meets it."""
    share, wanted = snapshot["in_time"], snapshot["sla_share"]
    return share is None or wanted is None or bool(share >= wanted)


def open_view(url: str, token_file: Path | None) -> ServiceView:
    """Return the view of a service that has been polled once; raise `InvalidInputError`."""
    check_url("--url", url)
    url = url.rstrip("/")
    view = ServiceView(url, _asker(url, read_token(token_file)))
    view.poll()
    return view


def _asker(url: str, token: str | None) -> Callable[[str], Any]:
    """Return a function that reads a path; each call opens a connection, to any replica."""
    return lambda path: ask(url, path, token, ASK_TIMEOUT_S)
