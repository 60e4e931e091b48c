"""The screen of `sojourn top`, drawn from a snapshot of the service."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sojourn.commands.top_view import PERCENTILES, resampled

_BARS = "▁▂▃▄▅▆▇█"
_UNKNOWN = "-"
#: Lines beside those of replicas, stages and decisions.
_FIXED_LINES = 10
_LEAST_DECISIONS = 3


def frame(snapshot: Mapping[str, Any], width: int, height: int) -> RenderableType:
    """Return one screen.

    Parameters
    ----------
    snapshot : mapping
        What `sojourn.commands.top_view.ServiceView.snapshot` returned.
    width, height : int
        Of the terminal, in characters. From 80 × 24 on, everything fits.
    """
    rows = _rows(snapshot)
    room = max(2, height - _FIXED_LINES)
    shown = min(len(rows), max(1, room - _LEAST_DECISIONS))
    if shown < len(rows):
        shown -= 1  # for the line that says how many more there are
    lines: list[RenderableType] = [*_head(snapshot, width)]
    lines.append(_table(snapshot, rows[:shown]))
    if shown < len(rows):
        lines.append(_line(f"  and {len(rows) - shown} more", style="dim"))
    left = room - shown - (shown < len(rows))
    lines += [Text(""), *_decisions(snapshot, left)]
    return Group(*lines)


def sparkline(values: Iterable[float]) -> str:
    """Return a bar for each value, the largest one full."""
    known = list(values)
    most = max(known, default=0.0)
    if most <= 0:
        return _BARS[0] * len(known)
    return "".join(_BARS[min(7, int(8 * value / most))] for value in known)


def _head(snapshot: Mapping[str, Any], width: int) -> list[Text]:
    unreachable = snapshot["unreachable"]
    title = _line(f"sojourn top  {snapshot['model'] or ''} at {snapshot['url']}", style="bold")
    if unreachable:
        title = _line(f"{unreachable['for_s']:.0f} s: {unreachable['reason']}", style="bold red")
    elif snapshot["config_error"]:
        title = _line(f"config not applied: {snapshot['config_error']}", style="bold red")
    return [
        title,
        _sla_line(snapshot),
        _load_line(snapshot, width),
        _response_line(snapshot),
        _fleet_line(snapshot),
        _batch_line(snapshot),
        Text(""),
    ]


def _sla_line(snapshot: Mapping[str, Any]) -> Text:
    share, wanted = snapshot["in_time"], snapshot["sla_share"]
    line = _label("SLA").append(snapshot["sla_in_words"] or _UNKNOWN).append("  in time ")
    if share is None:
        return line.append("- (no answers in 1 min)", style="dim")
    kept = wanted is None or share >= wanted
    line.append(f"{100 * share:.2f}%", style="bold green" if kept else "bold red")
    line.append(" in 1 min")
    if wanted is not None and wanted < 1:
        line.append(f", burn rate {_number((1 - share) / (1 - wanted))}")
    return line


def _load_line(snapshot: Mapping[str, Any], width: int) -> Text:
    line = _label("Load")
    for name in ("offered", "completed", "refused", "late", "dropped"):
        rate = snapshot[f"{name}_per_s"]
        if name == "dropped" and not rate:
            continue
        alarming = name not in ("offered", "completed") and bool(rate)
        line.append(f"{name} {_number(rate)}", style="yellow" if alarming else "").append("  ")
    line.append("/s ")
    columns = width - line.cell_len - len(" 10 min")
    if columns >= 8 and snapshot["load_per_s"]:
        bars = sparkline(resampled(snapshot["load_per_s"], min(40, columns)))
        line.append(bars, style="cyan").append(" 10 min", style="dim")
    return line


def _response_line(snapshot: Mapping[str, Any]) -> Text:
    measured, predicted = (snapshot["response_ms"][kind] for kind in ("measured", "predicted"))
    line = _label("Time")
    for percentile in PERCENTILES:
        line.append(f"p{percentile} ", style="dim").append(_number(measured.get(percentile)))
        line.append(f"/{_number(predicted.get(percentile))}  ")
    return line.append("ms, measured/predicted", style="dim")


def _fleet_line(snapshot: Mapping[str, Any]) -> Text:
    newest = snapshot["newest"]
    line = _label("Fleet").append(f"{len(snapshot['replicas'])} answering")
    if newest is None:
        return line.append("; the autoscaler has decided nothing yet", style="dim")
    line.append(f", {newest['replicas']} ordered")
    line.append(f", {_number(newest.get('required_replicas'))} needed")
    if newest.get("stuck_replicas"):
        line.append(f", {newest['stuck_replicas']} stuck", style="bold red")
    if snapshot["dry_run"]:
        line.append(", dry run", style="yellow")
    line.append(f", demand {_number(newest.get('demand_per_s'))}/s")
    level = newest.get("predicted_service_level")
    if level is not None:
        line.append(f", predicted {100 * level:.2f}%")
    return line


def _batch_line(snapshot: Mapping[str, Any]) -> Text:
    sizes = snapshot["batch_sizes"]
    line = _label("Batches").append("of rows ", style="dim")
    bars = sparkline(sizes.values())
    for size, bar in zip(sizes, bars, strict=True):
        line.append(f"≤{size} ").append(bar, style="cyan").append(" ")
    if not sizes:
        line.append(_UNKNOWN + " ")
    if snapshot["power_w"] is not None:
        line.append(f"  power {_number(snapshot['power_w'])} W")
        if snapshot["completed_per_s"]:
            energy_mj = 1e3 * snapshot["power_w"] / snapshot["completed_per_s"]
            line.append(f", {_number(energy_mj)} mJ a row")
    return line


def _rows(snapshot: Mapping[str, Any]) -> list[list[Text | str]]:
    if snapshot["pipeline"]:
        return [
            [
                stage["name"],
                f"{stage['busy']}/{stage['workers']}",
                str(stage["queue_length"]),
                _number(stage["mean_batch_size"]),
                _number(stage["latency_ms"]),
                _number(stage["budget_ms"]),
                "bottleneck" if stage["name"] == snapshot["pipeline"]["bottleneck"] else "",
            ]
            for stage in snapshot["pipeline"]["stages"]
        ]
    return [
        [
            Text(each["replica"], style="dim" if each["seen_s_ago"] > 5 else ""),
            _number(each["completed_per_s"]),
            f"{_number(each['queue_length'])}/{_number(each['control_limit'])}",
            _number(each["mean_batch_size"]),
            _percent(each["device_utilization"]),
            _percent(each["front_utilization"]),
            Text(
                each["bottleneck"] or _UNKNOWN,
                style="yellow" if each["bottleneck"] == "neither" else "",
            ),
            f"{_number(each['measured_ms'].get('99'))}/{_number(each['predicted_ms'].get('99'))}",
            _number(each["power_w"]),
        ]
        for each in snapshot["replicas"]
    ]


def _table(snapshot: Mapping[str, Any], rows: Sequence[Sequence[Text | str]]) -> Table:
    headings = (
        ("stage", "busy", "queue", "batch", "one ms", "budget ms", "")
        if snapshot["pipeline"]
        else (
            *("replica", "rows/s", "queue/limit", "batch", "device", "front"),
            *("limited by", "p99/predicted", "W"),
        )
    )
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    for number, heading in enumerate(headings):
        table.add_column(
            heading,
            justify="left" if number == 0 or heading == "limited by" else "right",
            no_wrap=True,
            max_width=12 if number == 0 else None,
        )
    for row in rows:
        table.add_row(*row)
    return table


def _decisions(snapshot: Mapping[str, Any], room: int) -> list[Text]:
    decisions = snapshot["decisions"]
    if not decisions or room < 1:
        return []
    lines = [_line("Decisions, newest first", style="dim")]
    for entry in reversed(decisions[-room:]):
        at = time.strftime("%H:%M:%S", time.localtime(entry["time_s"]))
        before, after = entry.get("target_replicas", entry["replicas"]), entry["replicas"]
        change = f"{before} → {after}" if before != after else f"{after}"
        line = _line(f"{at} ", style="dim")
        line.append(f"{change:>7}", style="bold" if before != after else "")
        lines.append(line.append(f"  {entry.get('reason', '')}"))
    return lines


def _label(name: str) -> Text:
    return _line("").append(f"{name:<9}", style="bold cyan")


def _line(text: str, style: str = "") -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    return line.append(text, style=style)


def _number(value: float | None) -> str:
    """Return three digits of a number."""
    if value is None:
        return _UNKNOWN
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _percent(share: float | None) -> str:
    return _UNKNOWN if share is None else f"{100 * share:.0f}%"
