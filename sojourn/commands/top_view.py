"""What `sojourn top` knows of a service: the answers of its polls, put together.

Behind a balancer each poll may reach another replica, so what a replica says of itself is kept by
the replica's id. Rates are differences of its own counters.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Document = Mapping[str, Any]

#: Window of the share in time and, at most, of rates.
WINDOW_S = 60.0
RATES_OVER_S = 10.0
#: How far back the load is shown.
LOAD_S = 600.0
DECISIONS_SHOWN = 8
#: A replica that did not answer for this long is gone; longer where polls reach few of many.
FORGET_AFTER_S = 15.0
#: Most polls of replicas at a time.
MAX_POLLS = 8
PERCENTILES = ("50", "95", "99")


@dataclass
class ReplicaView:
    """One replica.

    Attributes
    ----------
    newest : mapping
        What it said last.
    samples : deque of (float, dict of str to float)
        Its counters of the last `WINDOW_S`, each with the time of the poll.
    """

    newest: Document = field(default_factory=dict)
    samples: deque[tuple[float, dict[str, float]]] = field(default_factory=deque)

    def add(self, now_s: float, document: Document, counters: dict[str, float]) -> None:
        """Add an answer; counters that fell are those of a new process."""
        if self.samples and any(counters[name] < old for name, old in self.samples[-1][1].items()):
            self.samples.clear()
        self.newest = document
        self.samples.append((now_s, counters))
        while self.samples[0][0] < now_s - WINDOW_S:
            self.samples.popleft()

    def growth(self, window_s: float) -> tuple[float, dict[str, float]] | None:
        """Return the time between two polls, `window_s` apart at most, and how much was counted.

        If polls are further apart, these are the last two; None before the second.
        """
        if len(self.samples) < 2:
            return None
        last_s, last = self.samples[-1]
        first_s, first = next(sample for sample in self.samples if sample[0] >= last_s - window_s)
        if first_s == last_s:
            first_s, first = self.samples[-2]
        return last_s - first_s, {name: last[name] - first[name] for name in last}


class ServiceView:
    """A running service, as its polls tell.

    Parameters
    ----------
    url : str
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._replicas: dict[str, ReplicaView] = {}
        self._autoscaler: Document = {}
        self._load: dict[float, float] = {}
        self._failed: tuple[float, str] | None = None
        self._answered_s = -math.inf

    @property
    def polls(self) -> int:
        """How many replicas to ask at a time, so that most are reached."""
        return min(MAX_POLLS, max(1, self._ordered))

    @property
    def _ordered(self) -> int:
        newest = self._autoscaler.get("newest") or {}
        return int(newest.get("target_replicas") or newest.get("replicas") or 1)

    def add_policy(self, now_s: float, policy: Document, pipeline: Document | None = None) -> None:
        """Add a replica's answers: ``/sojourn/policy``, and of a pipeline ``/sojourn/pipeline``."""
        document = policy if pipeline is None else {**policy, "pipeline": pipeline}
        counters = _counters(document)
        name = (pipeline or policy).get("replica") or "-"
        self._replicas.setdefault(name, ReplicaView()).add(now_s, document, counters)
        self._failed, self._answered_s = None, now_s
        patience_s = max(FORGET_AFTER_S, 10.0 * self._ordered / MAX_POLLS)
        for other, view in list(self._replicas.items()):
            if view.samples[-1][0] < now_s - patience_s:
                del self._replicas[other]

    def add_autoscaler(self, content: Document) -> None:
        """Add the answer of ``/sojourn/autoscaler``."""
        self._autoscaler = content
        for entry in (*content.get("decisions", ()), content.get("newest") or {}):
            if entry.get("arrival_rate_per_s") is not None:
                self._load[entry["time_s"]] = entry["arrival_rate_per_s"]
        newest_s = max(self._load, default=0.0)
        self._load = {time: load for time, load in self._load.items() if time >= newest_s - LOAD_S}

    def add_failure(self, now_s: float, reason: str) -> None:
        """Note that a poll was not answered."""
        self._failed = (self._failed[0] if self._failed else now_s, reason)

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """Return what is known, ready for JSON."""
        first: Document = next(iter(self._replicas.values())).newest if self._replicas else {}
        decisions = [dict(entry) for entry in self._autoscaler.get("decisions", ())]
        newest = self._autoscaler.get("newest")
        percentile = (first.get("sla") or {}).get("percentile")
        return {
            "url": self.url,
            "model": first.get("model"),
            "unreachable": self._failed
            and {"for_s": now_s - self._failed[0], "reason": self._failed[1]},
            "config_error": next(filter(None, self._said("config_error")), None),
            "sla_in_words": first.get("sla_in_words"),
            # 99.9 / 100 is a little more than 0.999.
            "sla_share": None if percentile is None else round(percentile / 100, 10),
            **self._totals(),
            "response_ms": {
                kind: self._percentiles(f"{kind}_ms") for kind in ("measured", "predicted")
            },
            "batch_sizes": self._batch_sizes(),
            "replicas": [
                _replica(name, view, now_s) for name, view in sorted(self._replicas.items())
            ],
            "pipeline": _together([*filter(None, self._said("pipeline"))]),
            "dry_run": bool(self._autoscaler.get("dry_run")),
            "newest": newest and dict(newest),
            "decisions": decisions[-DECISIONS_SHOWN:],
            "load_per_s": [[time_s, load] for time_s, load in sorted(self._load.items())],
        }

    def _said(self, key: str) -> list[Any]:
        """Return what each replica said last of one thing, in the order of their names."""
        return [view.newest.get(key) for _, view in sorted(self._replicas.items())]

    def _totals(self) -> dict[str, Any]:
        """Return the rates of all replicas together, and the share in time over a minute."""
        rates: dict[str, float] = {}
        answered = late = 0.0
        for view in self._replicas.values():
            for name, rate in _rates(view).items():
                rates[name] = rates.get(name, 0.0) + rate
            grown = view.growth(WINDOW_S)
            if grown is not None:
                answered, late = answered + grown[1]["answered"], late + grown[1]["late"]
        newest = self._autoscaler.get("newest") or {}
        return {
            "offered_per_s": newest.get("arrival_rate_per_s"),
            **{
                f"{name}_per_s": rates.get(name)
                for name in ("completed", "refused", "late", "dropped")
            },
            "power_w": _power(rates),
            # Late ones are counted with their way through the balancer, a little after answers.
            "in_time": max(0.0, 1 - late / answered) if answered else None,
        }

    def _percentiles(self, kind: str) -> dict[str, float]:
        """Return percentiles, each the mean of the replicas that know it."""
        known = [view.newest.get(kind) or {} for view in self._replicas.values()]
        means = {}
        for percentile in PERCENTILES:
            values = [each[percentile] for each in known if percentile in each]
            if values:
                means[percentile] = sum(values) / len(values)
        return means

    def _batch_sizes(self) -> dict[str, int]:
        """Return how many of the last batches had which size, in powers of two."""
        counts: dict[int, int] = {}
        for view in self._replicas.values():
            for batch in view.newest.get("last_batches", ()):
                power = 1 << max(0, batch["size"] - 1).bit_length()
                counts[power] = counts.get(power, 0) + 1
        return {str(power): counts[power] for power in sorted(counts)}


def _together(pipelines: list[Document]) -> Document | None:
    """Return the pipeline that several replicas have, each with workers and queues of its own.

    A stage's numbers are those of all replicas together; the bottleneck is that of the replica
    where a new request would take longest.
    """
    if not pipelines:
        return None
    slowest = max(pipelines, key=lambda pipeline: pipeline["expected_ms"])
    stages = []
    for stage in slowest["stages"]:
        same = [
            other
            for pipeline in pipelines
            for other in pipeline["stages"]
            if other["name"] == stage["name"]
        ]
        counts = {
            key: sum(other[key] for other in same)
            for key in ("workers", "busy", "queue_length", "batches")
        }
        known = [other for other in same if other["mean_batch_size"] is not None]
        rows = sum(other["mean_batch_size"] * other["batches"] for other in known)
        mean_size = rows / counts["batches"] if counts["batches"] else None
        stages.append({**stage, **counts, "mean_batch_size": mean_size})
    return {**slowest, "stages": stages}


def _counters(document: Document) -> dict[str, float]:
    pipeline = document.get("pipeline")
    if pipeline is not None:
        requests = pipeline["requests"]
        return {
            "completed": requests["completed"],
            "refused": requests["refused"],
            "late": requests["late"],
            "answered": requests["completed"] + requests["late"],
            "dropped": requests["failed"] + requests["cancelled"],
        }
    rows, device = document["rows"], document.get("device") or {}
    return {
        "completed": rows["completed"],
        "refused": rows["refused"],
        "late": rows["late"],
        "answered": rows.get("answered", rows["completed"]),
        "dropped": rows["deadline_missed"] + rows["expired"],
        "busy_s": device.get("busy_s", 0.0),
        "energy_j": device.get("energy_j", 0.0),
    }


def _rates(view: ReplicaView) -> dict[str, float]:
    grown = view.growth(RATES_OVER_S)
    if grown is None or grown[0] <= 0:
        return {}
    return {name: count / grown[0] for name, count in grown[1].items()}


def _power(rates: Mapping[str, float]) -> float | None:
    """Return watts; None where nobody tells the energy of batches."""
    return rates.get("energy_j") or None


def _replica(name: str, view: ReplicaView, now_s: float) -> dict[str, Any]:
    newest, rates = view.newest, _rates(view)
    batches = [batch["size"] for batch in newest.get("last_batches", ())]
    front = newest.get("front") or {}
    return {
        "replica": name,
        "seen_s_ago": now_s - view.samples[-1][0],
        "bottleneck": newest.get("bottleneck"),
        "completed_per_s": rates.get("completed"),
        "queue_length": newest.get("queue_length"),
        "control_limit": newest.get("control_limit"),
        "longest_wait_ms": newest.get("longest_wait_ms"),
        "mean_batch_size": sum(batches) / len(batches) if batches else None,
        "device_utilization": rates.get("busy_s"),
        "front_utilization": front.get("utilization"),
        "power_w": _power(rates),
        "measured_ms": newest.get("measured_ms") or {},
        "predicted_ms": newest.get("predicted_ms") or {},
    }


def resampled(load: list[list[float]], columns: int, span_s: float = LOAD_S) -> Iterator[float]:
    """Yield the load of equal parts of the last `span_s`, each holding what was last known.

    Parameters
    ----------
    load : list of [float, float]
        Times, ascending, and loads.
    columns : int
        Number of parts.
    span_s : float
        Time that they cover together, up to the newest load.
    """
    if not load:
        return
    step_s, start_s = span_s / columns, load[-1][0] - span_s
    position, known = 0, 0.0
    for column in range(1, columns + 1):
        end_s = start_s + column * step_s if column < columns else math.inf
        inside = []
        while position < len(load) and load[position][0] <= end_s:
            inside.append(load[position][1])
            position += 1
        if inside:
            known = inside[-1]
            yield sum(inside) / len(inside)
        else:
            yield known
