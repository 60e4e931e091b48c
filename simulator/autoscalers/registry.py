"""The autoscalers that the command line knows: ``name``, or ``name:value`` of its knob."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from autoscaler.reports import AutoscalerSettings
from policy.errors import InvalidInputError
from simulator.autoscalers.baselines import BASELINES, Deployment
from simulator.autoscalers.fixed import FixedFleet, fixed_at_peak
from simulator.autoscalers.oracle import Clairvoyant, need_by_second
from simulator.autoscalers.sojourn import SojournAutoscaler
from simulator.results import FloatArray
from simulator.scaling import ScalingPolicy

#: What is compared unless told otherwise.
DEFAULT = ("sojourn", "ray", "static", "oracle")
#: What cost is measured against.
ORACLE = "oracle"


@dataclass(frozen=True, eq=False)
class Task:
    """A deployment, the arrivals it will see, and the bounds of its fleet.

    Attributes
    ----------
    deployment : Deployment
    offered : FloatArray, shape (seconds,)
        Requests of each second: only `static` and `oracle`, which know the trace, look at them.
    settings : AutoscalerSettings
        Of Sojourn's autoscaler.
    min_replicas, max_replicas : int
    """

    deployment: Deployment
    offered: FloatArray
    settings: AutoscalerSettings
    min_replicas: int
    max_replicas: int


@dataclass(frozen=True)
class Entry:
    """An autoscaler of the catalog.

    Attributes
    ----------
    label, short : str
        Its name for people as it comes, and where its knob is turned.
    rule : str
        How it decides, in a line.
    knob : str
        What a number after its name sets; empty where nothing can be set.
    make : callable
        Makes one for a task and a value of the knob; None is its own.
    """

    label: str
    short: str
    rule: str
    knob: str
    make: Callable[[Task, float | None], ScalingPolicy]


@dataclass(frozen=True)
class Choice:
    """An entry, and the value of its knob.

    Attributes
    ----------
    name : str
        As it was written.
    entry : Entry
    value : float or None
    """

    name: str
    entry: Entry
    value: float | None = None

    @property
    def label(self) -> str:
        """Its name for people."""
        if self.value is None:
            return self.entry.label
        return f"{self.entry.short} at {self.value:g}"

    @property
    def rule(self) -> str:
        """How it decides, in a line."""
        if self.value is None:
            return self.entry.rule
        return f"{self.entry.rule}; {self.entry.knob} {self.value:g}"

    def make(self, task: Task) -> ScalingPolicy:
        """Make one for a task."""
        return self.entry.make(task, self.value)


def choose(names: str) -> tuple[Choice, ...]:
    """Read a list of names with commas between them.

    Raises
    ------
    InvalidInputError
        A name is not known or comes twice, or a knob's value is no number above 0.
    """
    choices = tuple(_choice(name.strip()) for name in names.split(","))
    written = [choice.name for choice in choices]
    if len(set(written)) < len(written):
        raise InvalidInputError(f"autoscalers: one is given twice in {names}")
    return choices


def _choice(name: str) -> Choice:
    kind, colon, number = name.partition(":")
    if kind not in CATALOG:
        raise InvalidInputError(f"autoscaler {name!r}: must be one of {', '.join(CATALOG)}")
    entry = CATALOG[kind]
    if not colon:
        return Choice(name, entry)
    if not entry.knob:
        raise InvalidInputError(f"autoscaler {name!r}: {kind} has nothing to set")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise InvalidInputError(f"autoscaler {name!r}: {entry.knob} must be a number above 0")
    return Choice(name, entry, value)


def _sojourn(task: Task, risk: float | None) -> ScalingPolicy:
    return SojournAutoscaler(
        task.settings if risk is None else replace(task.settings, risk=risk),
        min_replicas=task.min_replicas,
        max_replicas=task.max_replicas,
    )


def _static(task: Task, count: float | None) -> ScalingPolicy:
    if count is None:
        return fixed_at_peak(task.offered, task.deployment.sla_rate_per_s)
    if count != int(count):
        raise InvalidInputError(f"autoscaler static: replicas must be a whole number, not {count}")
    return FixedFleet(int(count))


def _oracle(task: Task, _: float | None) -> ScalingPolicy:
    deployment = task.deployment
    need = need_by_second(task.offered, deployment.sla_rate_per_s, max(1, task.min_replicas))
    return Clairvoyant(need, deployment.start_time_s)


def _baseline(name: str, label: str, short: str, rule: str) -> Entry:
    baseline = BASELINES[name]
    return Entry(
        label, short, rule, baseline.knob, lambda task, value: baseline.make(task.deployment, value)
    )


#: By name.
CATALOG: Mapping[str, Entry] = MappingProxyType(
    {
        "sojourn": Entry(
            "Sojourn",
            "Sojourn",
            "the least replicas whose predicted service level meets the SLA, for the demand "
            "forecast over the time that a replica takes to start",
            "risk",
            _sojourn,
        ),
        "ray": _baseline(
            "ray",
            "Ray's default",
            "Ray",
            "Ray Serve's own policy: ongoing requests per replica, averaged and delayed",
        ),
        "knative": _baseline(
            "knative",
            "Knative",
            "Knative",
            "concurrency per replica over a stable minute, with a panic window of six seconds",
        ),
        "mdc": _baseline(
            "mdc",
            "M/D/c",
            "M/D/c",
            "the percentile of an M/D/c queue at the recent peak rate, as in Faro",
        ),
        "mark": _baseline(
            "mark", "MArk", "MArk", "in proportion to a predicted rate, with headroom, as in MArk"
        ),
        "peak": _baseline(
            "peak",
            "Peak of the minute",
            "Peak",
            "what the busiest second of the last minute needs",
        ),
        "static": Entry(
            "Static at peak",
            "Static",
            "always what the busiest second of the trace needs, known beforehand",
            "replicas",
            _static,
        ),
        ORACLE: Entry(
            "Oracle",
            "Oracle",
            "knows the trace and the start times: the cheapest fleet that has in each second "
            "what its requests need",
            "",
            _oracle,
        ),
    }
)
