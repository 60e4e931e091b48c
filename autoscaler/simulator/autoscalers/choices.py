"""Autoscalers as a user chooses them, and the grids over which each family is tuned."""

import math
from dataclasses import dataclass

from autoscaler.simulator.autoscalers.registry import AUTOSCALERS, AutoscalerEntry, ScalingProblem
from autoscaler.simulator.scaling import ScalingPolicy
from policy.errors import InvalidInputError

Settings = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Choice:
    """An entry and a value of its knob, as a user chose them.

    Attributes
    ----------
    name : str
        The choice as it was written: ``name`` or ``name:value``.
    entry : AutoscalerEntry
    value : float or None
        Value of the knob; None for the stock value.
    settings : tuple of (str, float)
        Further settings of the published autoscaler.
    """

    name: str
    entry: AutoscalerEntry
    value: float | None = None
    settings: tuple[tuple[str, float], ...] = ()

    @property
    def label(self) -> str:
        """Its name in tables."""
        if self.value is None and not self.settings:
            return self.entry.label
        at = "" if self.value is None else f" at {self.value:g}"
        return ", ".join([f"{self.entry.short_label}{at}", *_in_words(self.settings)])

    @property
    def rule(self) -> str:
        """How it decides, in one line."""
        knob = () if self.value is None else ((self.entry.knob, self.value),)
        return "; ".join([self.entry.rule, *_in_words((*knob, *self.settings))])

    def make(self, problem: ScalingProblem) -> ScalingPolicy:
        """Return a new autoscaler for one run."""
        return self.entry.make(problem, self.value, **dict(self.settings))


def choose(names: str) -> tuple[Choice, ...]:
    """Parse a comma-separated list of ``name`` or ``name:value``.

    Raises
    ------
    InvalidInputError
        A name is unknown or repeated, or the value of a knob is not a number above 0.
    """
    choices = tuple(_choice(name.strip()) for name in names.split(","))
    written = [choice.name for choice in choices]
    if len(set(written)) < len(written):
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


def _each(name: str, values: tuple[float, ...]) -> tuple[Settings, ...]:
    return tuple(((name, value),) for value in values)


#: Further settings of each family that is tuned; each is combined with every value of its knob. An
#: empty one leaves them as published.
VARIANTS: dict[str, tuple[Settings, ...]] = {
    "sojourn": ((),),
    "ray": _each("downscale_delay_s", (60.0, 600.0)),
    "knative": ((), *_each("scale_down_delay_s", (300.0, 900.0))),
    "hpa": ((), *_each("stabilization_s", (60.0, 900.0))),
    "mdc": ((), *_each("look_back_s", (600.0, 1800.0))),
    "mark": ((),),
    "mean": ((), *_each("interval_s", (15.0,))),
    "p90": (
        (),
        (("interval_s", 15.0),),
        (("step_share", 0.5),),
        (("interval_s", 15.0), ("step_share", 0.5)),
    ),
    "peak": ((), *_each("window_s", (300.0, 900.0, 1800.0, 3600.0))),
}
#: The families that are tuned.
FAMILIES = tuple(VARIANTS)


def grid(family: str) -> tuple[Choice, ...]:
    """Return the choices over which a family is tuned, its stock setting first."""
    entry = AUTOSCALERS[family]
    tuned = tuple(
        Choice(_name(family, value, settings), entry, value, settings)
        for settings in VARIANTS[family]
        for value in entry.curve
        if settings or value != entry.stock
    )
    return (Choice(family, entry), *tuned)


def _name(family: str, value: float, settings: Settings) -> str:
    return ", ".join([f"{family}:{value:g}", *_in_words(settings)])
