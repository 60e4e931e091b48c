"""Plots of a batching policy, for readers who have not read the papers."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from policy.batching_policy import BatchingPolicy
from policy.objective import ServiceLevelObjective, Weights
from policy.optimization import solve
from policy.profile import Profile
from policy.response_time.evaluation import Evaluation, evaluate

BLUE, ORANGE, GREEN, RED, GRAY = "#0072b2", "#d55e00", "#009e73", "#cc3311", "#777777"
_DEFAULT_PERCENTILE = 99.0


def save_report(
    path: str | Path,
    profile: Profile,
    arrival_rate_per_s: float,
    policy: BatchingPolicy,
    objective: ServiceLevelObjective | None = None,
) -> None:
    """Draw a policy, its response times and the alternatives, and save the figure.

    Without an SLA, the 99th percentile is marked.

    Raises
    ------
    OSError, ValueError
        The file cannot be written, or its format, which follows from its suffix, is unknown.
    """
    percentile = objective.percentile if objective else _DEFAULT_PERCENTILE
    evaluation = evaluate(profile, policy, arrival_rate_per_s)
    figure = Figure(figsize=(15, 4.8), layout="constrained", dpi=110)
    figure.suptitle(
        f"{profile.model} on {profile.device}: {arrival_rate_per_s:.4g} requests/s, "
        f"{arrival_rate_per_s / profile.capacity_per_s:.0%} of its capacity"
    )
    left, middle, right = figure.subplots(1, 3)
    draw_policy(left, policy)
    draw_response_times(middle, evaluation, percentile, objective)
    draw_trade_off(right, profile, evaluation, percentile, objective)
    figure.savefig(path)


def draw_policy(axes: Axes, policy: BatchingPolicy) -> None:
    """Draw what a free device does at each queue length."""
    size, limit = policy.max_batch_size, policy.control_limit
    lengths = np.arange(max(len(policy.actions), size + 1) + max(2, size // 8))
    started = np.array([policy.batch_size(int(length)) for length in lengths])
    waits = started == 0
    axes.plot(lengths, np.minimum(lengths, size), color=GRAY, lw=1, ls=":", label="all that wait")
    axes.plot(lengths[~waits], started[~waits], "o", color=BLUE, ms=4.5, label="start a batch")
    axes.plot(lengths[waits], started[waits], "o", mfc="white", color=ORANGE, ms=4.5, label="wait")
    axes.axvspan(-0.5, limit - 0.5, color=ORANGE, alpha=0.12, lw=0)
    text = f"starts at {limit}"
    if policy.max_wait_ms is not None:
        text += f", or when the\noldest has waited {policy.max_wait_ms:.3g} ms"
    axes.annotate(
        text,
        (limit, policy.batch_size(limit)),
        xytext=(0.95, 0.08),
        textcoords="axes fraction",
        ha="right",
        va="bottom",
        arrowprops={"arrowstyle": "->", "color": GRAY},
    )
    axes.set(
        title="What a free device does",
        xlabel="requests that wait",
        ylabel="batch size started",
        xlim=(-0.5, lengths[-1] + 0.5),
        ylim=(-0.04 * size, 1.08 * size),
    )
    axes.legend(loc="upper left", frameon=False)


def draw_response_times(
    axes: Axes,
    evaluation: Evaluation,
    percentile: float,
    objective: ServiceLevelObjective | None = None,
) -> None:
    """Draw the share of requests that take longer than a time, on a logarithmic scale."""
    highest = max(99.9, 100 - (100 - percentile) / 5)
    end_ms = 1.4 * evaluation.response_percentile_ms(highest)
    if objective:
        end_ms = max(end_ms, 1.25 * objective.response_time_ms)
    times = np.linspace(0, end_ms, 400)
    longer = 100 * np.maximum(1 - evaluation.cdf(times), 1e-9)
    axes.semilogy(times, longer, color=BLUE, lw=2)
    for mark in sorted({50.0, 90.0, percentile, 99.9}):
        at_ms = evaluation.response_percentile_ms(mark)
        axes.plot(at_ms, 100 - mark, "o", color=BLUE, ms=5)
        axes.annotate(
            f" p{mark:g} {at_ms:.3g} ms", (at_ms, 100 - mark), xytext=(4, 3),
            textcoords="offset points",
        )  # fmt: skip
    if objective:
        late = 100 - objective.percentile
        axes.axvline(objective.response_time_ms, color=RED, lw=1.2)
        axes.axhline(late, color=RED, lw=1.2, ls="--")
        axes.fill_between(
            [objective.response_time_ms, end_ms], late, 100, color=RED, alpha=0.07, lw=0
        )
        axes.annotate(
            f"SLA: at most {late:.4g}% over {objective.response_time_ms:g} ms",
            (0, late),
            xytext=(6, -5),
            textcoords="offset points",
            va="top",
            color=RED,
        )
    axes.set(
        title="How long requests take",
        xlabel="response time (ms)",
        ylabel="requests that take longer (%)",
        xlim=(0, end_ms),
        ylim=(100 - highest if highest > 99.9 else 0.05, 100),
    )
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(visible=True, alpha=0.25)


def draw_trade_off(
    axes: Axes,
    profile: Profile,
    evaluation: Evaluation,
    percentile: float,
    objective: ServiceLevelObjective | None = None,
) -> None:
    """Draw the energy that policies spend against a percentile of their response times.

    Where the profile has no energy, the share of time in which the device is busy stands for it.
    """
    rate = evaluation.arrival_rate_per_s
    greedy = evaluate(profile, BatchingPolicy.from_control_limit(1, profile.best_batch_size), rate)
    fastest_ms = greedy.response_percentile_ms(percentile)
    reach_ms = 4 * max(
        fastest_ms,
        evaluation.response_percentile_ms(percentile) / 2,
        objective.response_time_ms / 2 if objective else 0,
    )
    bounded = []
    for target_ms in np.geomspace(1.02 * fastest_ms, reach_ms, 9):
        solution = solve(profile, rate, ServiceLevelObjective(float(target_ms), percentile))
        if solution.meets_sla:
            power_w = solution.mean_power_w
            spent = 100 * solution.device_busy_fraction if power_w is None else power_w
            bounded.append((solution.percentile_ms, spent))
    within = np.reshape(bounded, (-1, 2)).T  # also of no point
    axes.plot(*within, "-o", color=GREEN, ms=3.5, label="least, with a limit on waiting")
    if profile.energy_mj is not None:
        weighted = [
            _point(evaluate(profile, policy, rate), percentile)
            for policy in _weighted(profile, rate)
        ]
        axes.plot(
            *np.transpose(weighted), "--s", color=GRAY, ms=3.5, lw=1, label="by queue length alone"
        )
    axes.plot(*_point(greedy, percentile), "D", color=ORANGE, ms=7, label="start whenever free")
    axes.plot(*_point(evaluation, percentile), "*", color=BLUE, ms=16, label="this policy")
    if objective:
        axes.axvline(objective.response_time_ms, color=RED, lw=1.2)
        axes.axvspan(objective.response_time_ms, 1.05 * reach_ms, color=RED, alpha=0.07, lw=0)
        axes.annotate(
            "SLA", (objective.response_time_ms, 0.02), xycoords=("data", "axes fraction"),
            xytext=(3, 0), textcoords="offset points", color=RED,
        )  # fmt: skip
    axes.set(
        title="Energy cost of fast responses",
        xlabel=f"response time of the {percentile:g}th percentile (ms)",
        ylabel="busy share of time (%)" if profile.energy_mj is None else "mean power (W)",
        xlim=(0, 1.05 * reach_ms),
    )
    axes.grid(visible=True, alpha=0.25)
    axes.legend(loc="upper right", frameon=True, framealpha=0.9, fontsize="small")


def _weighted(profile: Profile, arrival_rate_per_s: float) -> list[BatchingPolicy]:
    """Return the optimal policies over all energy weights, each control limit once."""
    by_limit = {}
    for weight in np.geomspace(0.05, 1000, 40):
        policy = solve(profile, arrival_rate_per_s, Weights(1, float(weight))).policy
        limit = policy.control_limit
        by_limit[limit] = BatchingPolicy.from_control_limit(limit, profile.best_batch_size)
    return [by_limit[limit] for limit in sorted(by_limit)]


def _point(evaluation: Evaluation, percentile: float) -> tuple[float, float]:
    power_w = evaluation.mean_power_w
    return (
        evaluation.response_percentile_ms(percentile),
        100 * evaluation.device_busy_fraction if power_w is None else power_w,
    )
