"""Figures 4, 5, 6 and 8 of the SMDP paper (arXiv 2301.12865), and one of percentiles.

The figures follow the paper's description of its own; none is traced.
"""

from pathlib import Path

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from benchmarks.inputs import GOOGLENET_P4
from benchmarks.paper import published, table_1
from benchmarks.paper.claims import (
    LOADS,
    USUAL_POLICIES,
    mean_response_and_power,
    optimal,
    rate_per_s,
)
from policy.objective import ServiceLevelObjective
from policy.optimization import solve
from policy.response_time.evaluation import evaluate
from policy.solvers.reference.methods import TOLERANCE, policy_iteration, value_iteration
from sojourn.reporting.policy_plot import draw_trade_off

COLORS = ("#0072b2", "#009e73", "#e69f00", "#d55e00", "#cc79a7", "#777777")
MARKS = {"start whenever free": "D", "always 8": "v", "always 16": "^", "always 32": "s"}
_CURVE_LOADS = (0.1, 0.3, 0.5, 0.7, 0.9)


def policies(out: Path, *, quick: bool) -> None:
    """Draw figure 4: the batch size started, by load and queue length, a panel per weight."""
    figure = Figure(figsize=(14, 6.4), layout="constrained", dpi=110)
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    lengths = np.arange(41)
    for axes, weight in zip(panels.flat, published.ENERGY_WEIGHTS, strict=True):
        found = [optimal(load, weight).policy for load in LOADS]
        started = np.array([[policy.batch_size(int(q)) for q in lengths] for policy in found])
        image = axes.imshow(
            np.ma.masked_equal(started, 0),
            origin="lower",
            aspect="auto",
            cmap="viridis",
            norm=Normalize(1, published.MAX_BATCH_SIZE),
        )
        for row, policy in enumerate(found):
            limit = policy.control_limit
            color = "white" if limit < 20 else "black"
            axes.text(limit, row, f"{limit}", color=color, size=8, ha="center", va="center")
        axes.set_title(f"energy weight {weight:g}")
        axes.set_yticks(range(len(LOADS)), [f"{load:g}" for load in LOADS])
    for axes in panels[-1]:
        axes.set_xlabel("requests waiting")
    for axes in panels[:, 0]:
        axes.set_ylabel("load")
    figure.colorbar(image, ax=panels, label="batch size started (white: waits)")
    figure.savefig(out / "policy_4_policies.png")


def objectives(out: Path, *, quick: bool) -> None:
    """Draw figure 5: the average cost of each policy over the energy weight, a panel per load."""
    weights = np.linspace(0, published.MAX_ENERGY_WEIGHT, 11 if quick else 41)
    figure = Figure(figsize=(14, 4.2), layout="constrained", dpi=110)
    panels = figure.subplots(1, 4)
    for axes, load in zip(panels, (0.1, 0.3, 0.7, 0.9), strict=True):
        best = [optimal(load, float(w)).average_cost for w in weights]
        for name, color in zip(USUAL_POLICIES, COLORS[1:], strict=False):
            point = mean_response_and_power(name, load)
            if point is not None:
                axes.plot(weights, point[0] + weights * point[1], color=color, lw=2, label=name)
        axes.plot(weights, best, color=COLORS[0], lw=3, ls=":", label="optimal")
        axes.set(
            title=f"load {load:g}",
            xlabel="energy weight w₂",
            xlim=(0, published.MAX_ENERGY_WEIGHT),
            ylim=(0, 1.35 * max(best)),
        )
        axes.grid(visible=True, alpha=0.25)
        axes.legend(loc="lower right", fontsize="small")
    panels[0].set_ylabel("average cost per ms (w₁ = 1)")
    figure.savefig(out / "policy_5_objectives.png")


def trade_off(out: Path, *, quick: bool) -> None:
    """Draw figure 6: a curve per load of mean response against mean power."""
    figure = Figure(figsize=(8.5, 5.2), layout="constrained", dpi=110)
    axes = figure.subplots()
    for load, color in zip(_CURVE_LOADS, COLORS, strict=False):
        weights = np.geomspace(1e-3, 1e4, 30 if quick else 120)
        solutions = [optimal(load, float(weight)) for weight in weights]
        axes.plot(
            [solution.mean_response_ms for solution in solutions],
            [solution.mean_power_w or 0.0 for solution in solutions],
            color=color,
            lw=2,
            label=f"optimal, load {load:g}",
        )
        for name in USUAL_POLICIES:
            point = mean_response_and_power(name, load)
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


def truncation(out: Path, *, quick: bool) -> None:
    """Draw figure 8: the average cost and the overflow state's part of it, over s_max.

    A full run stops relative value iteration after 10,000 sweeps, as the paper does. A quick run
    solves each queue to the end by policy iteration, which moves the drops to shorter queues.
    """
    figure = Figure(figsize=(12, 4.4), layout="constrained", dpi=110)
    left, right = figure.subplots(1, 2)
    shortest, longest = published.QUEUE_LENGTHS
    printed = [row.max_queue_length for row in published.TABLE_1]
    lengths = np.unique([*range(shortest, longest + 1, 16 if quick else 6), longest, *printed])
    for row, color in zip(published.TABLE_1, COLORS, strict=False):
        costs, overflows = [], []
        for length in lengths:
            cost, overflow = _costs(int(length), row.overflow_cost, quick=quick)
            costs.append(cost)
            overflows.append(overflow)
        label = f"c_o = {row.overflow_cost:g}"
        left.plot(lengths, costs, color=color, lw=2, label=label)
        right.semilogy(lengths, overflows, color=color, lw=2, label=label)
    best = table_1.exact_cost()
    left.axhline(best, color="black", lw=1, ls="--", label=f"exact, any queue: {best:.4f}")
    right.axhline(TOLERANCE, color="black", lw=1, ls="--", label="tolerance 0.001")
    left.set(ylabel="average cost g", ylim=(0, 100))
    right.set(ylabel="part of g paid in the overflow state, Δ", ylim=(1e-15, 1e3))
    for axes in (left, right):
        axes.set(xlabel="longest queue kept, s_max", xlim=(shortest, longest))
        axes.grid(visible=True, alpha=0.25)
        axes.legend(fontsize="small")
    figure.savefig(out / "policy_8_truncation.png")


def _costs(length: int, overflow_cost: float, *, quick: bool) -> tuple[float, float]:
    solve = policy_iteration if quick else value_iteration
    found = solve(table_1.truncated_problem(length, overflow_cost))
    return found.average_cost, found.overflow_cost_per_ms


def percentiles(out: Path, *, quick: bool) -> None:
    """Draw 99th percentile against mean power, without and with a max wait; not in the paper.

    A quick run leaves it out.
    """
    if quick:
        return
    figure = Figure(figsize=(14, 4.4), layout="constrained", dpi=110)
    panels = figure.subplots(1, 3)
    sla = ServiceLevelObjective(15, 99)
    for axes, load in zip(panels, (0.1, 0.3, 0.7), strict=True):
        rate = rate_per_s(load)
        evaluation = evaluate(GOOGLENET_P4, solve(GOOGLENET_P4, rate, sla).policy, rate)
        draw_trade_off(axes, GOOGLENET_P4, evaluation, sla.percentile, sla)
        axes.set_title(f"load {load:g}")
    figure.savefig(out / "policy_percentile.png")


FIGURES = (policies, objectives, trade_off, truncation, percentiles)
