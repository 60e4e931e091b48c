"""The simulated autoscalers: one table of their names, knobs and tuning grids.

To add one, write a `autoscaler.simulator.scaling.ScalingPolicy` and a row of `_ROWS`. The command
line, the reports and the benchmarks take it from here.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from autoscaler.settings import AutoscalerSettings
from autoscaler.simulator.autoscalers.hpa import HpaSettings, KubernetesHpa
from autoscaler.simulator.autoscalers.knative import Knative, KnativeSettings
from autoscaler.simulator.autoscalers.mdc import MdcSizing
from autoscaler.simulator.autoscalers.oracle import Clairvoyant, required_replicas_by_second
from autoscaler.simulator.autoscalers.peak import Peak
from autoscaler.simulator.autoscalers.ray_default import RayDefault, RaySettings
from autoscaler.simulator.autoscalers.sojourn import SojournAutoscaler
from autoscaler.simulator.scaling import ScalingPolicy
from autoscaler.simulator.scenario import Scenario
from policy.errors import InvalidInputError

#: The autoscalers compared by default.
DEFAULT = ("sojourn", "ray", "peak", "oracle")
#: The autoscaler that costs are relative to.
ORACLE = "oracle"

Settings = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class AutoscalerEntry:
    """A row of the table.

    Attributes
    ----------
    name, label : str
        Its name on the command line and in JSON, and in tables.
    build : callable
        ``build(scenario, value, **settings)`` builds one for a scenario and a value of the knob;
        None where the published value depends on the scenario. Further settings have their
        published names.
    knob : str
        Name of the setting that trades replicas for compliance; empty if it has none.
    stock : float or None
        The knob's value as published; None if that depends on the scenario.
    curve : tuple of float
        Values of the knob to tune over, from the fewest replicas to the most.
    variants : tuple of Settings
        Further settings, each combined with every value of `curve`.
    """

    name: str
    label: str
    build: Callable[..., ScalingPolicy]
    knob: str = ""
    stock: float | None = None
    curve: tuple[float, ...] = ()
    variants: tuple[Settings, ...] = ((),)

    def grid(self) -> "tuple[Choice, ...]":
        """Return the choices of the tuning grid, the published one first."""
        tuned = (
            Choice(_name(self.name, value, settings), self, value, settings)
            for settings in self.variants
            for value in self.curve
            if settings or value != self.stock
        )
        return (Choice(self.name, self), *tuned)


@dataclass(frozen=True)
class Choice:
    """An autoscaler and a value of its knob, as the user wrote them; None: as published."""

    name: str
    entry: AutoscalerEntry
    value: float | None = None
    settings: Settings = ()

    @property
    def label(self) -> str:
        at = "" if self.value is None else f" at {self.value:g}"
        return ", ".join([f"{self.entry.label}{at}", *_in_words(self.settings)])

    def make(self, scenario: Scenario) -> ScalingPolicy:
        value = self.entry.stock if self.value is None else self.value
        return self.entry.build(scenario, value, **dict(self.settings))


def choose(names: str) -> tuple[Choice, ...]:
    """Parse a comma-separated list of ``name`` or ``name:value``, or raise `InvalidInputError`."""
    choices = tuple(_choice(name.strip()) for name in names.split(","))
    if len({choice.name for choice in choices}) < len(choices):
        raise InvalidInputError(f"autoscalers: {names} names one twice")
    return choices


def _choice(text: str) -> Choice:
    name, colon, number = text.partition(":")
    if name not in AUTOSCALERS:
        raise InvalidInputError(f"autoscaler {text!r}: must be one of {', '.join(AUTOSCALERS)}")
    entry = AUTOSCALERS[name]
    if not colon:
        return Choice(text, entry)
    if not entry.knob:
        raise InvalidInputError(f"autoscaler {text!r}: {name} has nothing to set")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise InvalidInputError(f"autoscaler {text!r}: {entry.knob} must be a number above 0")
    return Choice(text, entry, value)


def _in_words(settings: Settings) -> list[str]:
    return [f"{name} {value:g}" for name, value in settings]


def _name(family: str, value: float, settings: Settings) -> str:
    return ", ".join([f"{family}:{value:g}", *_in_words(settings)])


def _each(name: str, *values: float) -> tuple[Settings, ...]:
    return tuple(((name, value),) for value in values)


def _sla_rate_per_s(scenario: Scenario) -> float:
    return scenario.load_lateness_curve.sla_rate_per_s


def _sojourn(scenario: Scenario, compliant_minutes: float | None) -> ScalingPolicy:
    settings = scenario.autoscaler_settings or AutoscalerSettings()
    if compliant_minutes is not None:  # a fixed risk would override it
        if not 50 <= compliant_minutes <= 99.99:
            raise InvalidInputError(
                f"sojourn: compliant_minutes must be from 50 to 99.99, not {compliant_minutes:g}"
            )
        settings = replace(settings, compliant_minutes=compliant_minutes, risk=None)
    return SojournAutoscaler(
        settings,
        min_replicas=scenario.min_replicas,
        max_replicas=scenario.max_replicas,
        starts=scenario.two_tier_starts,
        history=scenario.history,
    )


#: Settings of Ray for an immediate reaction to reports of every second.
_FAST_RAY = {"upscale_delay_s": 0.0, "look_back_period_s": 10.0, "metrics_interval_s": 1.0}


def _ray(scenario: Scenario, target: float, **settings: float) -> ScalingPolicy:
    given = {**_FAST_RAY, **settings} if settings else {}
    return RayDefault(RaySettings(target_ongoing_requests=target, **given))


def _knative(scenario: Scenario, target: float | None, **settings: float) -> ScalingPolicy:
    full_batch = scenario.replica_profile.best_batch_size
    return Knative(KnativeSettings(full_batch if target is None else target, **settings))


def _hpa(scenario: Scenario, share: float, **settings: Any) -> ScalingPolicy:
    return KubernetesHpa(HpaSettings(share * _sla_rate_per_s(scenario), **settings))


def _mdc(scenario: Scenario, headroom: float, look_back_s: float = 120) -> ScalingPolicy:
    return MdcSizing(scenario.replica_profile, scenario.objective, headroom, int(look_back_s))


def _peak(scenario: Scenario, headroom: float, window_s: float = 60) -> ScalingPolicy:
    return Peak(_sla_rate_per_s(scenario), headroom, window_s)


def _oracle(scenario: Scenario, _: None) -> ScalingPolicy:
    required = required_replicas_by_second(
        scenario.counts, _sla_rate_per_s(scenario), max(1, scenario.min_replicas)
    )
    return Clairvoyant(required, scenario.start_time.median_s)


_CONCURRENCIES = (96.0, 48.0, 32.0, 24.0, 16.0, 8.0)
_HEADROOMS = (0.8, 1.0, 1.2, 1.5, 2.0, 3.0)

_ROWS = (
    AutoscalerEntry(
        "sojourn",
        "Sojourn",
        _sojourn,
        knob="compliant_minutes",
        curve=(95.0, 98.0, 99.5, 99.9),
    ),
    AutoscalerEntry(
        "ray",
        "Ray",
        _ray,
        knob="target_ongoing_requests",
        stock=2.0,
        curve=_CONCURRENCIES,
        variants=_each("downscale_delay_s", 60.0, 600.0),
    ),
    AutoscalerEntry(
        "knative",
        "Knative",
        _knative,
        knob="concurrency_target",
        curve=_CONCURRENCIES,
        variants=((), *_each("scale_down_delay_s", 300.0, 900.0)),
    ),
    AutoscalerEntry(
        "hpa",
        "Kubernetes' HPA",
        _hpa,
        knob="target_share",
        stock=0.7,
        curve=(1.0, 0.9, 0.8, 0.7, 0.6, 0.45, 0.3),
        variants=((), *_each("stabilization_s", 60.0, 900.0)),
    ),
    AutoscalerEntry(
        "mdc",
        "M/D/c",
        _mdc,
        knob="headroom",
        stock=1.0,
        curve=_HEADROOMS,
        variants=((), *_each("look_back_s", 600.0, 1800.0)),
    ),
    AutoscalerEntry(
        "peak",
        "Peak of the minute",
        _peak,
        knob="headroom",
        stock=1.0,
        curve=_HEADROOMS,
        variants=((), *_each("window_s", 300.0, 900.0, 1800.0, 3600.0)),
    ),
    AutoscalerEntry(
        ORACLE,
        "Oracle",
        _oracle,
    ),
)

#: All autoscalers by name.
AUTOSCALERS: Mapping[str, AutoscalerEntry] = MappingProxyType({row.name: row for row in _ROWS})
#: The tuned autoscalers.
FAMILIES = tuple(row.name for row in _ROWS if row.curve)
