"""Types of the options that are numbers: each says which values make sense."""

import math
from typing import Any

import click

from policy.objective import fault_of_percentile


class Number(click.FloatRange):
    """A number in a range; unlike click's, never infinite and never "not a number"."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number."""
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


above_0 = Number(min=0, min_open=True)
from_0 = Number(min=0)
percentile = _Percentile(min=0, max=100, min_open=True, max_open=True)
#: Requests per second: beyond these, formulas leave what a float can hold.
arrival_rate = Number(min=1e-9, max=1_000_000_000)
#: Factor on a trace's requests.
scale = Number(min=0, max=1_000_000, min_open=True)
