"""`sojourn top`: watch a running service in the terminal."""

import time
import urllib.error
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from deployments.access.credentials import TOKEN_VARIABLE, read_token
from deployments.local.urls import NO_ANSWER, check_url, get_json
from policy.errors import InvalidInputError
from sojourn import option_types
from sojourn.output import json_option, print_json, token_file_option, url_option

Document = Mapping[str, Any]

ASK_TIMEOUT_S = 2.0
#: A replica that no poll has reached for this long is gone.
FORGET_AFTER_S = 15.0
#: Each poll reaches any replica behind the balancer, so a round polls once per replica, up to this.
MAX_POLLS = 32
DECISIONS_SHOWN = 8
PERCENTILES = ("50", "95", "99")
_RATES = ("completed", "refused", "late")
#: Counters of refused requests begin with this and end with the reason.
_REFUSED = "refused_"


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
def command(url: str, token_file: Path | None, interval_s: float, once: bool, as_json: bool) -> int:
    """Watch a running service in the terminal until Ctrl-C.

    It shows the SLA and the share in time, the load and its outcomes, predicted and measured
    response times, replicas, and the autoscaler's last decisions with their reasons. With --once
    or --json, it prints one frame or object, and the exit status is 1 if the SLA was not met in the
    last minute.
    """
    check_url("--url", url)
    console = Console()
    if not (once or as_json or console.is_terminal):
        raise InvalidInputError("top needs a terminal; use --once or --json without one")
    view = ServiceView(url.rstrip("/"), _asker(url.rstrip("/"), read_token(token_file)))
    view.poll()
    if once or as_json:
        snapshot = view.snapshot()
        if as_json:
            print_json(snapshot)
        else:
            console.print(frame(snapshot))
        return 0 if _kept(snapshot) else 1
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


class ServiceView:
    """The state of a running service, combined from the answers to polls.

    `ask` returns the JSON object at a path of the service; it raises `InvalidInputError`.
    """

    def __init__(
        self, url: str, ask: Callable[[str], Any], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.url, self._ask, self._clock = url, ask, clock
        self.failure: str | None = None
        self._autoscaler: Document = {}
        #: The newest answer of each replica, and when it came.
        self._replicas: dict[str, tuple[float, Document]] = {}

    def poll(self) -> None:
        """Poll the autoscaler and the replicas; raise `InvalidInputError` if none answers."""
        self._autoscaler = self._ask("/sojourn/autoscaler")
        newest = self._autoscaler.get("newest") or {}
        replicas = max(1, int(newest.get("replicas") or 1))
        # Eight polls of two replicas miss one of them once in 128 times.
        for _ in range(1 if replicas == 1 else min(MAX_POLLS, 4 * replicas)):
            document = self._ask("/sojourn/policy")
            if "stages" in document:
                document = {**document, **self._ask("/sojourn/pipeline")}
            self._replicas[document.get("replica") or "-"] = self._clock(), document
        self.failure = None
        for name, (at_s, _) in [*self._replicas.items()]:
            if at_s < self._clock() - FORGET_AFTER_S:
                del self._replicas[name]

    def snapshot(self) -> dict[str, Any]:
        """Return the state of the service, ready for JSON."""
        newest = [document for _, (_, document) in sorted(self._replicas.items())]
        first = newest[0] if newest else {}
        replicas = [*map(_replica, newest)]
        answered, late, failed = (
            sum(each["last_minute"].get(key, 0) for each in newest)
            for key in ("answered", "late", "failed")
        )
        known = [each["rates"] for each in replicas if each["rates"]]
        refusals = {key for each in known for key in each if key.startswith(_REFUSED)}
        percentile = (first.get("sla") or {}).get("percentile")
        decision = self._autoscaler.get("newest")
        return {
            "url": self.url,
            "model": first.get("model"),
            "unreachable": self.failure,
            "config_error": next(filter(None, (each.get("config_error") for each in newest)), None),
            "sla_in_words": first.get("sla_in_words"),
            "sla_share": None if percentile is None else round(percentile / 100, 10),
            "in_time": max(0.0, 1 - (late + failed) / (answered + failed))
            if answered + failed
            else None,
            "offered_per_s": (decision or {}).get("arrival_rate_per_s"),
            **{f"{key}_per_s": sum(r[key] for r in known) if known else None for key in _RATES},
            "refused_per_s_by_reason": {
                key.removeprefix(_REFUSED): rate
                for key in sorted(refusals)
                if (rate := sum(each.get(key, 0.0) for each in known))
            },
            "response_ms": {
                kind: _mean_percentiles([each.get(f"{kind}_ms") or {} for each in newest])
                for kind in ("measured", "predicted")
            },
            "replicas": replicas,
            "stages": first.get("stages"),
            "dry_run": bool(self._autoscaler.get("dry_run")),
            "newest": decision,
            "decisions": [*self._autoscaler.get("decisions", ())][-DECISIONS_SHOWN:],
        }


def _replica(document: Document) -> dict[str, Any]:
    minute = document["last_minute"]
    seconds = minute["seconds"]
    return {
        "replica": document.get("replica") or "-",
        "rates": {
            key: minute.get(key, 0) / seconds
            for key in (*_RATES, *minute)
            if key in _RATES or key.startswith(_REFUSED)
        }
        if seconds
        else {},
        **{key: document.get(key) for key in ("bottleneck", "queue_length", "control_limit")},
        "measured_ms": document.get("measured_ms") or {},
        "predicted_ms": document.get("predicted_ms") or {},
    }


def _mean_percentiles(replicas: list[Document]) -> dict[str, float]:
    found = {key: [each[key] for each in replicas if key in each] for key in PERCENTILES}
    return {key: sum(values) / len(values) for key, values in found.items() if values}


def frame(snapshot: Document) -> Group:
    """Return one screen, drawn from a snapshot of `ServiceView`."""
    title = Text(f"sojourn top  {snapshot['model'] or ''} at {snapshot['url']}", style="bold")
    if snapshot["unreachable"] or snapshot["config_error"]:
        reason = snapshot["unreachable"] or f"config not applied: {snapshot['config_error']}"
        title = Text(reason, style="bold red")
    lines = [title, _sla_line(snapshot)]
    load = [f"{key} {_number(snapshot[f'{key}_per_s'])}" for key in ("offered", *_RATES)]
    lines.append(_line("Load", "  ".join(load) + " /s"))
    if refused := snapshot["refused_per_s_by_reason"]:
        lines.append(
            _line("Refused", "  ".join(f"{k} {_number(v)}" for k, v in refused.items()) + " /s")
        )
    measured, predicted = (snapshot["response_ms"][kind] for kind in ("measured", "predicted"))
    times = [f"p{p} {_number(measured.get(p))}/{_number(predicted.get(p))}" for p in PERCENTILES]
    lines.append(_line("Time", "  ".join(times) + "  ms, measured/predicted"))
    lines.append(_line("Fleet", _fleet(snapshot)))
    decisions = [_decision(entry) for entry in reversed(snapshot["decisions"])]
    return Group(*lines, Text(), _table(snapshot), Text(), *decisions)


def _sla_line(snapshot: Document) -> Text:
    share = snapshot["in_time"]
    line = _line("SLA", f"{snapshot['sla_in_words'] or '-'}  in time ")
    if share is None:
        return line.append("- (no answers in 1 min)", style="dim")
    style = "bold green" if _kept(snapshot) else "bold red"
    return line.append(f"{100 * share:.2f}%", style).append(" in 1 min")


def _kept(snapshot: Document) -> bool:
    """Return whether the SLA was met in the last minute; an idle service meets it."""
    share, wanted = snapshot["in_time"], snapshot["sla_share"]
    return share is None or wanted is None or bool(share >= wanted)


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
        columns = ["replica", "rows/s", "queue", "limit", "limited by", "p99 ms", "predicted"]
        rows = [
            [
                *(each["replica"], each["rates"].get("completed"), each["queue_length"]),
                *(each["control_limit"], each["bottleneck"]),
                *(each["measured_ms"].get("99"), each["predicted_ms"].get("99")),
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


def _decision(entry: Document) -> Text:
    at = time.strftime("%H:%M:%S", time.localtime(entry["time_s"]))
    before, after = entry.get("target_replicas", entry["replicas"]), entry["replicas"]
    change = f"{before} → {after}" if before != after else f"{after}"
    return Text(f"{at} {change:>7}  {entry.get('reason', '')}")


def _line(label: str, text: str) -> Text:
    return Text().append(f"{label:<8}", style="bold cyan").append(text)


def _number(value: float | None) -> str:
    """Return a number to three digits."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _asker(url: str, token: str | None) -> Callable[[str], Any]:
    """Return a function that reads a path; each call opens a connection, to any replica."""

    def ask(path: str) -> Any:
        try:
            content = get_json(url + path, token, ASK_TIMEOUT_S)
        except urllib.error.HTTPError as error:
            error.close()
            raise InvalidInputError(_refused(url, error.code)) from None
        except NO_ANSWER as error:
            reason = getattr(error, "reason", error)
            raise InvalidInputError(f"no service answers at {url} ({reason})") from None
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise InvalidInputError(f"{url}{path} is not that of a Sojourn service")
        return content

    return ask


def _refused(url: str, status: int) -> str:
    if status in (401, 403):
        return (
            f"the service at {url} needs a token for operations: pass it with --token-file or in "
            f"{TOKEN_VARIABLE}"
        )
    if status == 404:
        return (
            f"there is no Sojourn service at {url}; --url ends with its route prefix, if it has one"
        )
    return f"the service at {url} is not ready: HTTP {status}"
