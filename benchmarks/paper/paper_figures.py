"""Reproduce Table I and Figures 4, 5, 6 and 8 of the SMDP paper, and check the claims of its text.

    python -m benchmarks.paper.paper_figures [--quick] [--json] [--out docs/images]

The setting is the paper's (Xu, Sun, Zhou, Niu, arXiv 2301.12865): GoogLeNet on a Tesla P4, with the
coefficients as the paper rounds them and batches of at most 32. Every number of Table I is printed
and ours, computed with the paper's own method. A full run takes about four minutes, most of them
for queues whose relative value iteration runs into its limit of 10,000 sweeps.
"""

from dataclasses import asdict
from pathlib import Path

import click

from benchmarks.arguments import json_option, quick_option
from benchmarks.inputs import ROOT
from benchmarks.paper import claims, figures, published, table_1
from sojourn.output import print_json, print_table, say


@click.command()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=ROOT / "docs" / "images",
    help="Folder for the figures.",
)
@quick_option(
    "Table I at the printed queue lengths only, without its last row; coarser figures 5 to 8, "
    "figure 8 without the limit on sweeps."
)
@json_option
def main(out: Path, quick: bool, as_json: bool) -> None:
    """Reproduce Table I and Figures 4, 5, 6 and 8 of the SMDP paper, and check its claims."""
    out.mkdir(parents=True, exist_ok=True)
    for figure in figures.FIGURES:
        figure(out, quick=quick)
        say(f"drawn: {figure.__name__}")
    found = list(table_1.rows(quick=quick))
    checked = list(claims.check())
    if as_json:
        print_json(
            {
                "table_1": [asdict(row) for row in found],
                "table_1_of_the_paper": [asdict(row) for row in published.TABLE_1],
                "exact_average_cost": table_1.exact_cost(),
                "claims": [asdict(claim) for claim in checked],
            }
        )
        return
    table_1.print_table_1(found)
    print_table(
        ("the paper says", "we find", "holds"),
        [(claim.claim, claim.found, "yes" if claim.holds else "no") for claim in checked],
        title="Claims",
    )


if __name__ == "__main__":
    main()
