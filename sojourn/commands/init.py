"""`sojourn init`: write a starter project."""

import os
import shlex
from pathlib import Path

import click

from policy.errors import InvalidInputError
from sojourn.output import json_option, print_json, program, say
from sojourn.project import FILES, starter_file


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path())
@json_option
def command(folder: Path, as_json: bool) -> None:
    """Write a starter project to FOLDER: a model, its config, and a test."""
    existing = [name for name in FILES if (folder / name).exists()]
    if existing:
        raise InvalidInputError(
            f"{folder}: has {', '.join(existing)} already, which init would overwrite; "
            "choose another folder"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            (folder / name).write_text(starter_file(name), encoding="utf-8")
    except OSError as error:
        raise InvalidInputError(f"{folder}: cannot write: {error.strerror}") from None
    if as_json:
        print_json({"folder": str(folder), "files": FILES})
        return
    say(f"wrote {', '.join(FILES)}; next: {_next(folder)}")


def _next(folder: Path) -> str:
    # Absolute, because it is run from the folder.
    sojourn = program("sojourn")
    if os.path.dirname(sojourn):
        sojourn = os.path.abspath(sojourn)
    serve = f"{shlex.quote(sojourn)} serve serve.yaml"
    return serve if folder == Path() else f"cd {shlex.quote(str(folder))} && {serve}"
