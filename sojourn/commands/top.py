"""`sojourn top` and `sojourn explain`: watch a running service in the terminal, and say why."""

import time
from operator import itemgetter
from pathlib import Path

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from policy.errors import InvalidInputError
from sojourn import option_types
from sojourn.explanation import findings
from sojourn.output import json_option, print_json, token_file_option, url_option
from sojourn.service_view import PERCENTILES, RATES, Document, is_sla_kept, open_view


@click.command("top")
@url_option
@token_file_option
@click.option(
    "--interval-s",
    type=option_types.Number(0.1, 60.0),
    default=1.0,
    show_default=True,
    help="Time between two polls.",
)
@click.option(
    "--once",
    is_flag=True,
    help="Print one frame; the exit status is 1 if the SLA was not met in the last minute.",
)
@json_option
@click.pass_context
def command(
    context: click.Context,
    url: str,
    token_file: Path | None,
    interval_s: float,
    once: bool,
    as_json: bool,
) -> int:
    """Watch a running service in the terminal until Ctrl-C.

    It shows the SLA and the share in time, the load and its outcomes, predicted and measured
    response times, replicas, and the autoscaler's last decisions with their reasons. With --once
    or --json, it prints one frame or object, and the exit status is 1 if the SLA was not met in the
    last minute.
    """
    console = Console()
    if once or as_json:
        option_types.refuse_options(context, {"interval_s"}, "a single poll has none")
    elif not console.is_terminal:
        raise InvalidInputError("top needs a terminal; use --once or --json without one")
    view = open_view(url, token_file)
    if once or as_json:
        snapshot = view.snapshot()
        if as_json:
            print_json(snapshot)
        else:
            console.print(frame(snapshot))
        return 0 if is_sla_kept(snapshot) else 1
    with Live(frame(view.snapshot()), console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(interval_s)
                try:
                    view.poll()
                except InvalidInputError as error:
                    view.failure = str(error)
                live.update(frame(view.snapshot()), refresh=True)
        except KeyboardInterrupt:
            return 0


@click.command("explain")
@url_option
@token_file_option
@json_option
def explain(url: str, token_file: Path | None, as_json: bool) -> None:
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
    click.echo(_summary(snapshot))
    for one in found:
        click.echo(f"\ncause:    {one.cause}\nevidence: {one.evidence}\nchange:   {one.change}")
    if not found:
        click.echo("There is nothing to explain.")


def _summary(snapshot: Document) -> str:
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


def frame(snapshot: Document) -> Group:
    """Return one screen, drawn from a snapshot of `ServiceView`."""
    title = Text(f"sojourn top  {snapshot['model'] or ''} at {snapshot['url']}", style="bold")
    if snapshot["unreachable"] or snapshot["config_error"]:
        reason = snapshot["unreachable"] or f"config not applied: {snapshot['config_error']}"
        title = Text(reason, style="bold red")
    lines = [title, _sla_line(snapshot)]
    load = [f"{key} {_number(snapshot[f'{key}_per_s'])}" for key in ("offered", *RATES)]
    lines.append(_line("Load", "  ".join(load) + " /s"))
    if refused := snapshot["refused_per_s_by_reason"]:
        lines.append(
            _line("Refused", "  ".join(f"{k} {_number(v)}" for k, v in refused.items()) + " /s")
        )
    measured, predicted = (snapshot["response_ms"][kind] for kind in ("measured", "predicted"))
    times = [f"p{p} {_number(measured.get(p))}/{_number(predicted.get(p))}" for p in PERCENTILES]
    lines.append(_line("Time", "  ".join(times) + "  ms, measured/predicted"))
    lines.append(_line("Fleet", _fleet(snapshot)))
    events = [*snapshot["decisions"], *snapshot["lost_replicas"]]
    events.sort(key=itemgetter("time_s"), reverse=True)
    return Group(*lines, Text(), _table(snapshot), Text(), *map(_event, events))


def _sla_line(snapshot: Document) -> Text:
    share = snapshot["in_time"]
    line = _line("SLA", f"{snapshot['sla_in_words'] or '-'}  in time ")
    if share is None:
        return line.append("- (no answers in 1 min)", style="dim")
    style = "bold green" if is_sla_kept(snapshot) else "bold red"
    return line.append(_percent(share), style).append(" in 1 min")


def _fleet(snapshot: Document) -> str:
    newest = snapshot["newest"]
    parts = [f"{len(snapshot['replicas'])} answering"]
    if newest is None:
        return f"{parts[0]}; the autoscaler has decided nothing yet"
    parts.append(f"{newest['replicas']} ordered")
    parts.append(f"{_number(newest.get('required_replicas'))} needed")
    if newest.get("stuck_replicas"):
        parts.append(f"{newest['stuck_replicas']} stuck")
    if snapshot["dry_run"]:
        parts.append("dry run")
    return ", ".join((*parts, f"demand {_number(newest.get('demand_per_s'))}/s"))


def _table(snapshot: Document) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    if snapshot["stages"]:
        columns = ["name", "busy", "workers", "queue_length", "latency_ms", "budget_ms"]
        rows = [[each.get(key) for key in columns] for each in snapshot["stages"]]
    else:
        columns = ["replica", "in time", "rows/s", "queue", "limit", "limited by"]
        columns += ["p99 ms", "predicted", "memory MB"]
        rows = [
            [
                *(each["replica"], _percent(each["in_time"]), each["rates"].get("completed")),
                *(each["queue_length"], each["control_limit"]),
                # Nothing limits a replica that is idle.
                None if each["in_time"] is None else each["bottleneck"],
                *(each["measured_ms"].get("99"), each["predicted_ms"].get("99")),
                1e-6 * each["memory_bytes"],
            ]
            for each in snapshot["replicas"]
        ]
    for heading in columns:
        table.add_column(
            heading, justify="left" if heading == columns[0] else "right", no_wrap=True
        )
    for row in rows:
        table.add_row(*(cell if isinstance(cell, str) else _number(cell) for cell in row))
    return table


def _event(entry: Document) -> Text:
    """Return the line of a decision, or of a replica that was lost."""
    at = time.strftime("%H:%M:%S", time.localtime(entry["time_s"]))
    if "replica" in entry:
        return Text(f"{at}    lost  {entry['replica']}: {entry['reason']}")
    before, after = entry.get("target_replicas", entry["replicas"]), entry["replicas"]
    change = f"{before} → {after}" if before != after else f"{after}"
    return Text(f"{at} {change:>7}  {entry.get('reason', '')}")


def _line(label: str, text: str) -> Text:
    return Text().append(f"{label:<8}", style="bold cyan").append(text)


def _percent(share: float | None) -> str:
    if share is None:
        return "-"
    # 99.996% is not 100%.
    return f"{round(min(100 * share, 99.99) if share < 1 else 100, 2):g}%"


def _number(value: float | None) -> str:
    """Return a number to three digits, and to four decimals."""
    if value is None:
        return "-"
    value = round(value, 4)
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
