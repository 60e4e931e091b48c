"""Reproduce Table I and Figures 4 to 8 of the SMDP paper with this project's solvers.

    python -m benchmarks.paper.paper_figures [--quick] [--json] [--out docs/images]

The setting is the paper's (Xu et al., arXiv 2501.02181): GoogLeNet on a Tesla P4, with the
coefficients as the paper rounds them and batches of at most 32. A full run takes about a minute;
two rows of Table I alone take 325,000 sweeps of relative value iteration.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.arguments import json_option, quick_option
from benchmarks.inputs import GOOGLENET_P4, ROOT
from policy.baseline_policies import static, work_conserving
from policy.batching_policy import BatchingPolicy
from policy.errors import InfeasibleError
from policy.objective import ServiceLevelObjective, Weights
from policy.optimization import solve
from policy.response_time.evaluation import evaluate
from policy.solution import Solution
from policy.solvers.reference import policy_iteration, relative_value_iteration
from policy.solvers.reference.truncated import TruncatedSmdp
from sojourn.output import print_json, print_table, say

TOLERANCE = 1e-3  # the paper's δ: largest share of the average cost left to the overflow state
SPAN = 1e-2  # the paper's ε: the span at which relative value iteration stops
MAX_QUEUE_LENGTH = 1000
OVERFLOW_COSTS = (1e4, 1e3, 1e2, 10.0, 0.0)
LOADS = (0.1, 0.3, 0.5, 0.7, 0.9)
COLORS = ("#0072b2", "#009e73", "#e69f00", "#d55e00", "#cc79a7", "#777777")
MARKS = {"start whenever free": "D", "always 8": "v", "always 16": "^", "always 32": "s"}


@dataclass(frozen=True)
class TableRow:
    """A row of Table I: the shortest queue that suffices for an overflow cost, and its solution.

    Attributes
    ----------
    overflow_cost : float
        The paper's c_o.
    max_queue_length : int
        The paper's s_max.
    sweeps : int
        Sweeps of relative value iteration until it stopped.
    overflow_share : float
        Share of the average cost that the overflow state causes, the paper's Δ.
    average_cost : float
        Average cost per millisecond, the paper's g.
    """

    overflow_cost: float
    max_queue_length: int
    sweeps: int
    overflow_share: float
    average_cost: float


def rate_per_s(load: float) -> float:
    """Return the arrivals per second at a fraction `load` of the device's capacity."""
    return load * GOOGLENET_P4.capacity_per_s


def optimal(load: float, weights: Weights) -> Solution:
    """Solve for the optimal policy over queues of any length."""
    return solve(GOOGLENET_P4, rate_per_s(load), weights)


def table_1_problem(max_queue_length: int, overflow_cost: float) -> TruncatedSmdp:
    """Return Table I's problem: load 0.9, both weights 1."""
    return TruncatedSmdp(
        GOOGLENET_P4, rate_per_s(0.9), Weights(1, 1), max_queue_length, overflow_cost
    )


def table_1_row(overflow_cost: float) -> TableRow:
    """Lengthen the queue until the overflow state's share of the average cost is negligible."""
    for length in range(GOOGLENET_P4.max_batch_size, MAX_QUEUE_LENGTH):
        smdp = table_1_problem(length, overflow_cost)
        solution = policy_iteration.solve(smdp)
        share = policy_iteration.overflow_cost_share(smdp, solution.actions)
        if share < TOLERANCE:
            sweeps = relative_value_iteration.solve(smdp, span=SPAN).rounds
            return TableRow(overflow_cost, length, sweeps, share, solution.average_cost)
    raise InfeasibleError(
        f"overflow cost {overflow_cost:g}: no queue shorter than {MAX_QUEUE_LENGTH} suffices"
    )


def print_table_1(rows: Sequence[TableRow], exact_cost: float) -> None:
    """Print Table I for people."""
    print_table(
        ("c_o", "s_max", "sweeps", "Delta", "g", "over the exact"),
        [
            (
                f"{row.overflow_cost:g}",
                row.max_queue_length,
                row.sweeps,
                f"{row.overflow_share:.3g}",
                f"{row.average_cost:.5f}",
                f"{row.average_cost / exact_cost - 1:.1e}",
            )
            for row in rows
        ],
        title="Table I",
    )
    say(f"Exact average cost, any queue length: {exact_cost:.10f}")


def figure_4(out: Path) -> None:
    """Draw the optimal policies: the size of the batch started, over the queue length."""
    weights = (0.0, 0.5, 1.0, 5.0, 50.0)
    figure = Figure(figsize=(14, 4.2), layout="constrained", dpi=110)
    panels = figure.subplots(1, 4, sharey=True)
    # At low loads longer queues hardly ever occur, and the solver leaves them at full batches.
    lengths = np.arange(37)
    for axes, load in zip(panels, (0.1, 0.3, 0.7, 0.9), strict=True):
        axes.plot(lengths, np.minimum(lengths, 32), color="#bbbbbb", lw=1, ls=":")
        for number, weight in enumerate(weights):
            policy = optimal(load, Weights(1, weight)).policy
            started = np.array([policy.batch_size(int(q)) for q in lengths], dtype=float)
            started[started == 0] = np.nan
            axes.plot(
                lengths + 0.12 * number,
                started,
                "o",
                ms=4.5 - 0.5 * number,
                color=COLORS[number],
                label=f"{weight:g}: from {policy.control_limit} on",
            )
        axes.set(title=f"load {load:g}", xlabel="requests waiting", xlim=(-1, 37), ylim=(0, 34))
        axes.grid(visible=True, alpha=0.2)
        axes.legend(title="energy weight", loc="upper left", fontsize="small")
    panels[0].set_ylabel("batch size started (no dot: waits)")
    figure.savefig(out / "policy_4_policies.png")


def figure_5(out: Path) -> None:
    """Draw how much more than the optimum the usual policies cost, over the energy weight."""
    weights = np.linspace(0, 15, 61)
    figure = Figure(figsize=(12, 4.4), layout="constrained", dpi=110)
    for axes, load in zip(figure.subplots(1, 2), (0.3, 0.7), strict=True):
        best = [optimal(load, Weights(1, w)).average_cost for w in weights]
        for (name, policy), color in zip(usual_policies(), COLORS[1:], strict=False):
            point = mean_response_and_power(policy, load)
            if point is not None:
                above = 100 * ((point[0] + weights * point[1]) / best - 1)
                axes.plot(weights, above, color=color, lw=2, label=name)
        axes.axhline(0, color=COLORS[0], lw=3, label="optimal")
        axes.set(
            title=f"load {load:g}",
            xlabel="energy weight",
            ylabel="average cost above the optimum (%)",
            xlim=(0, 15),
            ylim=(-3, 100),
        )
        axes.grid(visible=True, alpha=0.25)
        axes.legend(loc="upper right")
    figure.savefig(out / "policy_5_objectives.png")


def figure_6(out: Path) -> None:
    """Draw the trade-off of mean response and mean power, a curve per load."""
    figure = Figure(figsize=(8.5, 5.2), layout="constrained", dpi=110)
    axes = figure.subplots()
    for load, color in zip(LOADS, COLORS, strict=False):
        solutions = [optimal(load, Weights(1, w)) for w in np.geomspace(1e-3, 1e4, 120)]
        axes.plot(
            [solution.mean_response_ms for solution in solutions],
            [solution.mean_power_w or 0.0 for solution in solutions],
            color=color,
            lw=2,
            label=f"optimal, load {load:g}",
        )
        for name, policy in usual_policies():
            point = mean_response_and_power(policy, load)
            if point is not None:
                axes.plot(*point, MARKS[name], color=color, ms=6)
    for name, mark in MARKS.items():
        axes.plot([], [], mark, color="#777777", label=name)
    axes.set(xlabel="mean response (ms)", ylabel="mean power (W)", xscale="log", xlim=(1.3, 80))
    axes.set_xticks([2, 5, 10, 20, 50], ["2", "5", "10", "20", "50"])
    axes.set_xticks([], minor=True)
    axes.grid(visible=True, alpha=0.25)
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.01, 0.5))
    figure.savefig(out / "policy_6_trade_off.png")


def figure_7(out: Path) -> None:
    """Draw the trade-off of the 99th percentile and mean power, without and with a max wait."""
    figure = Figure(figsize=(14, 4.4), layout="constrained", dpi=110)
    panels = figure.subplots(1, 3)
    for axes, load in zip(panels, (0.1, 0.3, 0.7), strict=True):
        limited = [BatchingPolicy.from_control_limit(q, 32) for q in range(1, 33)]
        points = (p99_and_power(policy, load) for policy in limited)
        draw(axes, [point for point in points if point], "s--", COLORS[5], "queue length alone")
        fastest = p99_and_power(limited[0], load)
        assert fastest is not None
        bounded = []
        for target_ms in np.geomspace(1.02 * fastest[0], 60, 14):
            objective = ServiceLevelObjective(float(target_ms), 99)
            solution = solve(GOOGLENET_P4, rate_per_s(load), objective)
            if solution.meets_sla and solution.mean_power_w is not None:
                bounded.append((solution.percentile_ms, solution.mean_power_w))
        draw(axes, bounded, "o-", COLORS[1], "and a max wait")
        axes.plot(*fastest, "D", color=COLORS[3], ms=8, label="start whenever free")
        axes.set(
            title=f"load {load:g}", xlabel="99th percentile of the response (ms)", xlim=(0, 62)
        )
        axes.grid(visible=True, alpha=0.25)
        axes.legend(loc="upper right")
    panels[0].set_ylabel("mean power (W)")
    figure.savefig(out / "policy_7_percentile.png")


def figure_8(out: Path) -> None:
    """Draw what truncating the queue does to the average cost, over the length kept."""
    figure = Figure(figsize=(12, 4.4), layout="constrained", dpi=110)
    left, right = figure.subplots(1, 2)
    best = optimal(0.9, Weights(1, 1)).average_cost
    lengths = np.arange(40, 201, 2)
    for overflow_cost, color in zip(OVERFLOW_COSTS, COLORS, strict=False):
        costs, shares = [], []
        for length in lengths:
            smdp = table_1_problem(int(length), overflow_cost)
            solution = policy_iteration.solve(smdp)
            costs.append(solution.average_cost)
            shares.append(policy_iteration.overflow_cost_share(smdp, solution.actions))
        label = f"overflow cost {overflow_cost:g}"
        left.plot(lengths, costs, color=color, lw=2, label=label)
        right.semilogy(lengths, np.maximum(shares, 1e-12), color=color, lw=2, label=label)
    left.axhline(best, color="black", lw=1, ls="--", label=f"exact, any queue: {best:.4f}")
    right.axhline(TOLERANCE, color="black", lw=1, ls="--", label="tolerance of the paper")
    left.set(xlabel="longest queue kept, s_max", ylabel="average cost g", ylim=(20, 90))
    right.set(xlabel="longest queue kept, s_max", ylabel="overflow state's share of g")
    for axes in (left, right):
        axes.grid(visible=True, alpha=0.25)
        axes.legend(fontsize="small")
    figure.savefig(out / "policy_8_truncation.png")


def usual_policies() -> Iterable[tuple[str, BatchingPolicy]]:
    """Yield the policies that the paper compares its own with."""
    yield "start whenever free", work_conserving(GOOGLENET_P4)
    for size in (8, 16, 32):
        yield f"always {size}", static(GOOGLENET_P4, size)


def mean_response_and_power(policy: BatchingPolicy, load: float) -> tuple[float, float] | None:
    """Return mean response (ms) and mean power (W); None where the policy cannot keep up."""
    try:
        evaluation = evaluate(GOOGLENET_P4, policy, rate_per_s(load))
    except InfeasibleError:
        return None
    assert evaluation.mean_power_w is not None
    return evaluation.mean_response_ms, evaluation.mean_power_w


def p99_and_power(policy: BatchingPolicy, load: float) -> tuple[float, float] | None:
    """Return the 99th percentile (ms) and mean power (W); None where the policy cannot keep up."""
    try:
        evaluation = evaluate(GOOGLENET_P4, policy, rate_per_s(load))
    except InfeasibleError:
        return None
    assert evaluation.mean_power_w is not None
    return evaluation.response_percentile_ms(99), evaluation.mean_power_w


def draw(
    axes: Axes, points: Sequence[tuple[float, float]], style: str, color: str, label: str
) -> None:
    """Draw `points` as a curve."""
    axes.plot([x for x, _ in points], [y for _, y in points], style, color=color, ms=4, label=label)


@click.command()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=ROOT / "docs" / "images",
    help="Folder for the figures.",
)
@click.option("--table/--no-table", default=True, help="Compute Table I, too.")
@quick_option("Leave out the two smallest overflow costs of Table I.")
@json_option
def main(out: Path, table: bool, quick: bool, as_json: bool) -> None:
    """Reproduce Table I and Figures 4 to 8 of the SMDP paper."""
    out.mkdir(parents=True, exist_ok=True)
    for figure in (figure_4, figure_5, figure_6, figure_7, figure_8):
        figure(out)
        say(f"drawn: {figure.__name__}")
    costs = OVERFLOW_COSTS[: 3 if quick else None] if table else ()
    rows = [table_1_row(overflow_cost) for overflow_cost in costs]
    exact_cost = optimal(0.9, Weights(1, 1)).average_cost
    if as_json:
        print_json({"table_1": [asdict(row) for row in rows], "exact_average_cost": exact_cost})
    elif table:
        print_table_1(rows, exact_cost)


if __name__ == "__main__":
    main()
