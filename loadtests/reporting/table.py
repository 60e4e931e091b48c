"""The results of a load test as a table, for the terminal and for the page."""

from collections.abc import Mapping
from typing import Any

MAX_STEPS_SHOWN = 5


def table(result: Mapping[str, Any]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return the headings of the columns, and the name and the cells of each row.

    `result` is that of `loadtests.reporting.report.report`.
    """
    steps = result["by_step"]
    shown = steps if 1 < len(steps) <= MAX_STEPS_SHOWN else []
    columns = [_column(part) for part in (*shown, result)]
    headings = [*(f"step {number}" for number in range(1, len(shown) + 1)), "whole test"]
    # A kind of failure may occur in one step only.
    names = dict.fromkeys(name for column in columns for name in column)
    return headings, [(name, [column.get(name, "0") for column in columns]) for name in names]


def _column(part: Mapping[str, Any]) -> dict[str, str]:
    share, met = part["share_within_sla"], part["sla_met"]
    waited = part["waited_for_connection"]
    return {
        "offered (requests/s)": f"{part['offered_rate_per_s']:,.1f}",
        "sent (requests/s)": f"{part['achieved_rate_per_s']:,.1f}",
        "requests": f"{part['requests']:,}",
        **({"waited for a connection": f"{waited:,}"} if waited else {}),
        # Without expected outputs, no answer can be called right.
        **({"right answers": f"{part['ok']:,}"} if part["ok"] or not part["answered"] else {}),
        **({"answered": f"{part['answered']:,}"} if part["answered"] else {}),
        "wrong answers": f"{part['wrong_answers']:,}",
        "lost": f"{part['lost']:,}",
        **{
            f"p{percentile} (ms)": "–" if value is None else f"{value:,.1f}"
            for percentile, value in part["response_percentiles_ms"].items()
        },
        "within the SLA (%)": "–" if share is None else f"{100 * share:.2f}",
        "SLA": {None: "–", True: "met", False: "not met"}[met],
        **{f"failed: {kind}": f"{count:,}" for kind, count in part["failed"].items()},
    }
