"""The options that the benchmark scripts share, and the output of their results.

Every script that can be shortened takes ``--quick``. Every script that measures numbers takes
``--json``, which prints one JSON object on standard output and nothing else; progress goes to
standard error. Every script that can draw its result takes ``--plot FILE``.
"""

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from sojourn import option_types
from sojourn.output import json_option, print_json, print_table

__all__ = ["cell", "json_option", "plot_option", "print_result", "quick_option"]

Command = TypeVar("Command", bound=Callable[..., Any])

#: Passes `plot_file`, a path or None.
plot_option = click.option(
    "--plot",
    "plot_file",
    type=option_types.new_file,
    help="Draw the result to this image file.",
)


def quick_option(effect: str) -> Callable[[Command], Command]:
    """Declare ``--quick``, which passes `quick`; `effect` is its help."""
    return click.option("--quick", is_flag=True, help=effect)


def print_result(result: Mapping[str, Any], as_json: bool) -> None:
    """Print a benchmark's result: one JSON object, or tables for people.

    Single values share a table. A list of objects is a table with a row for each; an object is one
    with a row for each of its keys.
    """
    if as_json:
        print_json(result)
        return
    if not sys.stdout.isatty():
        os.environ.setdefault("COLUMNS", "160")  # the tables are wider than the default for files
    single = [(name, cell(v)) for name, v in result.items() if not isinstance(v, dict | list)]
    if single:
        print_table(("measured", "value"), single)
    for name, value in result.items():
        if isinstance(value, dict):
            rows = [{"": key} | _columns(entry) for key, entry in value.items()]
        elif isinstance(value, list):
            rows = [*map(_columns, value)]
        else:
            continue
        headings = list(dict.fromkeys(heading for row in rows for heading in row))
        cells = [[cell(row.get(heading, "")) for heading in headings] for row in rows]
        print_table(headings, cells, title=name)


def _columns(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {"value": value}


def cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {cell(entry)}" for key, entry in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(cell, value))
    return "none" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
