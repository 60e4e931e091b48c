"""Types of options, each with the values that make sense, and options that go together."""

import math
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective, fault_of_percentile

_Command = TypeVar("_Command", bound=Callable[..., Any])


def refuse_options(context: click.Context, names: Collection[str], why: str) -> None:
    """Raise an error if one of these options was given, which would do nothing."""
    for option in context.command.params:
        name = option.name or ""
        if name in names and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise InvalidInputError(f"{option.opts[0]}: {why}")


class Number(click.FloatRange):
    """A number in a range; unlike click's, never infinite and never "not a number"."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"must be a finite number, not {number}.", param, ctx)
        return number


class _Percentile(Number):
    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        percentile = super().convert(value, param, ctx)
        if fault := fault_of_percentile(percentile):
            self.fail(f"{fault}.", param, ctx)
        return percentile


class _NewFile(click.Path):
    """A file to write; its folder must be there before the work begins."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(str(super().convert(value, param, ctx)))
        if not path.parent.is_dir():
            self.fail(f"there is no folder {path.parent}.", param, ctx)
        return path


new_file = _NewFile(dir_okay=False)
above_0 = Number(min=0, min_open=True)
from_0 = Number(min=0)
percentile = _Percentile(min=0, max=100, min_open=True, max_open=True)
#: Requests per second: beyond these, formulas leave what a float can hold.
arrival_rate = Number(min=1e-9, max=1_000_000_000)
#: Factor on a trace's requests.
scale = Number(min=0, max=1_000_000, min_open=True)


class _Sla(click.ParamType[ServiceLevelObjective]):
    name = "TIMEms@PERCENT"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> ServiceLevelObjective:
        if isinstance(value, ServiceLevelObjective):
            return value
        try:
            return ServiceLevelObjective.parse(value)
        except InvalidInputError as error:
            self.fail(f"{error}.", param, ctx)


sla = _Sla()


def sla_options(meaning: str) -> Callable[[_Command], _Command]:
    """Add ``--sla`` and the two options that it is short for; `chosen_sla` joins them."""

    def decorate(command: _Command) -> _Command:
        for option in (
            click.option("--percentile", type=percentile, help="Its percentile.  [default: 99]"),
            click.option("--response-time-ms", type=above_0, help="Its response time."),
            click.option("--sla", type=sla, help=f"{meaning}, as in 50ms@95 or p95=50ms."),
        ):
            command = option(command)
        return command

    return decorate


def chosen_sla(
    sla: ServiceLevelObjective | None, response_time_ms: float | None, percentile: float | None
) -> ServiceLevelObjective | None:
    """Return the SLA that the options name; None if they name none."""
    if sla is not None:
        if response_time_ms is not None or percentile is not None:
            raise InvalidInputError("--sla: omit it, or --response-time-ms and --percentile")
        return sla
    if response_time_ms is not None:
        return ServiceLevelObjective(response_time_ms, 99.0 if percentile is None else percentile)
    if percentile is not None:
        raise InvalidInputError("--percentile: needs --response-time-ms")
    return None


def required(chosen: ServiceLevelObjective | None) -> ServiceLevelObjective:
    """Return the SLA that `chosen_sla` returned, which must be there."""
    if chosen is None:
        raise InvalidInputError("give the SLA: --sla 50ms@95, or --response-time-ms 50")
    return chosen
