"""`sojourn token NAME`: make a bearer token and its lines for the config."""

import os
from pathlib import Path
from typing import Any, get_args

import click
import yaml

from deployments.access.credentials import TOKEN_VARIABLE
from deployments.access.tokens import hash_token, make_token
from deployments.config.user_config import Scope, TokenConfig
from deployments.config.validation import validate
from sojourn import option_types
from sojourn.output import json_option, print_json


@click.command("token")
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(get_args(Scope)),
    multiple=True,
    default=("inference",),
    show_default=True,
    help="Its scope; may be repeated.",
)
@click.option("--requests-per-s", type=float, help="Limit of its requests.  [default: none]")
@click.option("--burst", type=float, help="Requests at once.  [default: the requests of a second]")
@click.option(
    "--file",
    type=option_types.new_file,
    help="Write the token to this new file, which only you can read, and do not print it.",
)
@json_option
def command(
    name: str,
    scopes: tuple[Scope, ...],
    requests_per_s: float | None,
    burst: float | None,
    file: Path | None,
    as_json: bool,
) -> None:
    """Make a token called NAME, and print its entry for the config.

    The config holds only its hash, so keep the token itself: it cannot be shown again.
    """
    token = make_token()
    limits = {"requests_per_s": requests_per_s, "burst": burst}
    entry: dict[str, Any] = {
        "name": name,
        "hash": hash_token(token),
        "scopes": list(dict.fromkeys(scopes)),
        **{key: value for key, value in limits.items() if value is not None},
    }
    validate(TokenConfig, entry)
    if file is not None:
        _write(file, token)
    if as_json:
        shown = {"token": token} if file is None else {"file": str(file)}
        print_json({**shown, "config": entry})
        return
    if file is None:
        click.echo(f"{token}\n\nKeep it: it cannot be shown again.", nl=False)
    else:
        click.echo(f"The token is in {file}.", nl=False)
    line = yaml.safe_dump(entry, default_flow_style=True, sort_keys=False, width=1000).strip()
    click.echo(f" To admit it, add this to user_config:\n\naccess:\n  tokens:\n  - {line}\n")
    click.echo(
        f"A client sends it in the header Authorization: Bearer …; `sojourn loadtest` reads it "
        f"from {TOKEN_VARIABLE} or --token-file."
    )


def _write(file: Path, token: str) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as opened:
        opened.write(f"{token}\n")
