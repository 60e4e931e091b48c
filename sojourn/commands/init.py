"""`sojourn init`: write a starter project."""

import os
import shlex
from pathlib import Path

import click

from policy.errors import InvalidInputError
from sojourn.output import json_option, print_json, program, say
from sojourn.project import TEMPLATES, starter_files


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path())
@click.option(
    "--template",
    type=click.Choice(list(TEMPLATES)),
    default="torch",
    show_default=True,
    help="The library of the model, or image: files of images, classified by torch.",
)
@json_option
def command(folder: Path, template: str, as_json: bool) -> None:
    """Write a starter project to FOLDER: a model, its config, and a test."""
    files = starter_files(template)
    existing = [name for name in files if (folder / name).exists()]
    if existing:
        raise InvalidInputError(
            f"{folder}: has {', '.join(existing)} already, which init would overwrite; "
            "choose another folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    if as_json:
        print_json({"folder": str(folder), "files": [*files]})
        return
    say(f"wrote {', '.join(files)}; next: {_next(folder)}")
    if package := TEMPLATES[template]:
        say(f"it needs {package}, unless you have it: pip install {package}")


def _next(folder: Path) -> str:
    # Absolute, because it is run from the folder.
    sojourn = program("sojourn")
    if os.path.dirname(sojourn):
        sojourn = os.path.abspath(sojourn)
    serve = f"{shlex.quote(sojourn)} serve serve.yaml"
    return serve if folder == Path() else f"cd {shlex.quote(str(folder))} && {serve}"
