"""Output of the commands: a table for people, or one JSON object for programs."""

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import orjson
from click.core import ParameterSource
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def print_json(value: Mapping[str, Any]) -> None:
    """Print `value` to stdout as a JSON object; it may contain numpy arrays and scalars."""
    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_INDENT_2
    click.echo(orjson.dumps(value, option=options).decode())


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Print a table: the first column aligned left, the others right."""
    table = Table(title=title or None, title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row))
    Console().print(table)


def say(line: str) -> None:
    """Print a line on stderr, where it does not mix with `--json` on stdout."""
    click.echo(line, err=True)


@contextmanager
def progress_bar() -> Iterator[Callable[[str, float], None]]:
    """Show a progress bar on stderr, if that is a terminal; yield what sets its label and share."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda label, done: bar.update(task, description=label, completed=done)


def program(name: str) -> str:
    """Return a program of this environment as the user's shell finds it."""
    if shutil.which(name):
        return name
    path = Path(sys.executable).with_name(name)
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def command_line(context: click.Context) -> str:
    """Return the command line, without options left at their defaults and without ``--json``."""
    words = [program("sojourn"), context.command.name or ""]
    for parameter in context.command.params:
        name = parameter.name or ""
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE and name != "as_json":
            value = context.params[name]
            for each in value if isinstance(value, tuple) else (value,):
                words.append(parameter.opts[0])
                if each is not True:
                    words.append(repr(each) if isinstance(each, float) else str(each))
    return shlex.join(words)


existing_file = click.Path(exists=True, dir_okay=False, path_type=Path)
#: Of the commands that talk to a running service.
url_option = click.option(
    "--url",
    default="http://127.0.0.1:8000",
    show_default=True,
    help="URL of the service, with its route prefix if it has one.",
)
token_file_option = click.option(
    "--token-file",
    type=existing_file,
    help="File with the token to send.  [default: the one in $SOJOURN_TOKEN, if any]",
)
