"""The options that the benchmark scripts share.

Every script that can be shortened takes ``--quick``. Every script that measures numbers takes
``--json``, which prints one JSON object on standard output and nothing else; progress goes to
standard error. Every script that can draw its result takes ``--plot FILE``.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from sojourn.output import json_option

__all__ = ["json_option", "plot_option", "quick_option"]

Command = TypeVar("Command", bound=Callable[..., Any])

#: Passes `plot_file`, a path or None.
plot_option = click.option(
    "--plot",
    "plot_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw the result to this image file.",
)


def quick_option(effect: str) -> Callable[[Command], Command]:
    """Declare ``--quick``, which passes `quick`.

    Parameters
    ----------
    effect : str
        How a quick run is shorter, for ``--help``.
    """
    return click.option("--quick", is_flag=True, help=effect)
