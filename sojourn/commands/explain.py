"""`sojourn explain`: why a running service refused requests, or was late, in the last minute."""

from pathlib import Path

import click

from sojourn.explanation import findings
from sojourn.output import json_option, print_json, token_file_option, url_option
from sojourn.service_view import RATES, Document, open_view


@click.command("explain")
@url_option
@token_file_option
@json_option
def command(url: str, token_file: Path | None, as_json: bool) -> None:
    """Explain why a running service refused requests, or was late, in the last minute.

    Each explanation has a cause, what shows it, and the one setting to change.
    """
    view = open_view(url, token_file)
    # Under load a replica answers with the decisions that it read last, and only then reads anew.
    view.poll()
    snapshot = view.snapshot()
    found = findings(snapshot)
    if as_json:
        rates = {f"{key}_per_s": snapshot[f"{key}_per_s"] for key in ("offered", *RATES)}
        names = ("url", "model", "sla_in_words", "in_time", "refused_per_s_by_reason")
        shown = {name: snapshot[name] for name in names}
        print_json({**shown, **rates, "findings": [one._asdict() for one in found]})
        return
    click.echo(_in_words(snapshot))
    for one in found:
        click.echo(f"\ncause:    {one.cause}\nevidence: {one.evidence}\nchange:   {one.change}")
    if not found:
        click.echo("There is nothing to explain.")


def _in_words(snapshot: Document) -> str:
    share = snapshot["in_time"]
    kept = "no answers" if share is None else f"{100 * share:.4g}% in time"
    rates = [f"{snapshot[f'{key}_per_s'] or 0:.3g}/s {key}" for key in RATES]
    reasons = ", ".join(
        f"{rate:.3g}/s {reason}" for reason, rate in snapshot["refused_per_s_by_reason"].items()
    )
    refused = f" (refused: {reasons})" if reasons else ""
    return (
        f"{snapshot['model']}, SLA {snapshot['sla_in_words']}; in the last minute {kept}: "
        f"{', '.join(rates)}{refused}"
    )
