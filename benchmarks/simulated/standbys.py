"""What standbys save where replicas take five minutes to start: Sojourn with and without them.

    python -m benchmarks.simulated.standbys [--quick] [--json] [--traces DIR]

Sojourn, with the settings that it ships with, scales a fleet whose replicas take 300 s to start
(lognormal, one start in fifty fails), first without standbys, then with standbys that serve after
10 s, at several shares of a replica's price, and at one of them for a larger share of the windows.
Costs include the standbys, and are relative to the oracle and the bound of a fleet without them.
The loads are the superposed tuning days of `benchmarks.simulated.autoscaler`.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from benchmarks.arguments import json_option, quick_option
from benchmarks.inputs import GOOGLENET_P4
from benchmarks.simulated.arena import cases
from simulator.arena import ORACLE_CHOICE, Load, score
from simulator.autoscalers.choices import choose
from simulator.reporting.tournament import line
from simulator.standbys import Standbys
from simulator.start_time import StartTime
from sojourn.output import print_json, print_table

COLD_S, STANDBY_S = 300, 10
#: The setting of Sojourn, and the price of a standby.
ROWS = (
    ("sojourn", None),
    ("sojourn", 0.3),
    ("sojourn:0.999", 0.3),
    ("sojourn", 0.1),
    ("sojourn", 0.5),
)
QUICK_HOURS, QUICK_PEAK = 8, 12


@click.command()
@quick_option("The first eight hours, with up to 12 replicas.")
@click.option(
    "--traces",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the traces of `benchmarks.simulated.autoscaler`; without it, a synthetic load.",
)
@json_option
def main(quick: bool, folder: Path | None, as_json: bool) -> None:
    """Measure what standbys save where replicas take five minutes to start."""
    profile, objective = cases.service(GOOGLENET_P4)
    traces = [
        trace
        for trace in cases.TRACES
        if folder is not None and (folder / trace.tune_on.file).exists()
    ]
    content: dict[str, Any] = {}
    for trace in traces or [cases.SYNTHETIC]:
        part, peak = trace.tune_on, trace.peak
        if quick:
            part, peak = part.cut(QUICK_HOURS), min(peak, QUICK_PEAK)
        case = cases.Case(cases.Trace(trace.name, part, (), peak), True, COLD_S, 0)
        (load,) = case.loads(profile, objective, folder)
        rows = content[case.name] = _rows(load)
        if not as_json:
            print_table(
                ("sojourn", "price of a standby", "minutes held", "over oracle", "over bound"),
                [tuple(row.values()) for row in rows],
                title=case.name,
            )
    if as_json:
        print_json(content)


def _rows(load: Load) -> list[dict[str, str]]:
    oracle = load.measure(ORACLE_CHOICE)
    rows = []
    for name, price in ROWS:
        (sojourn,) = choose(name)
        start = StartTime(STANDBY_S, cases.START_SPREAD)
        standbys = None if price is None else Standbys(start, price)
        with_them = Load(load.name, replace(load.scenario, standbys=standbys))
        found = score(with_them.measure(sojourn), oracle, load.bound_replica_seconds)
        words = line("sojourn", found)
        rows.append(
            {
                "sojourn": words.label,
                "price": "no standbys" if price is None else f"{price:g}",
                "held": words.held,
                "over_oracle": words.over_oracle,
                "over_bound": words.over_bound,
            }
        )
    return rows


if __name__ == "__main__":
    main()
