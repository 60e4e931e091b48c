"""Plots of a sizing plan."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from autoscaler.sizing.estimators import Prediction
from policy.objective import ServiceLevelObjective

BLUE, ORANGE, RED, GRAY = "#0072b2", "#d55e00", "#cc3311", "#777777"


def save_plan(
    path: str | Path,
    predictions: Sequence[Prediction],
    powers_w: Sequence[float | None],
    chosen: int,
    objective: ServiceLevelObjective,
    title: str,
) -> None:
    """Plot service level, percentile and power against the number of replicas.

    Parameters
    ----------
    path : str or Path
        The suffix sets the format; the folder must exist.
    predictions : sequence of Prediction
        In ascending order of their number of replicas.
    powers_w : sequence of float or None
        Mean power of all replicas together, in W, one per prediction; None if it is not known.
    chosen : int
        Number of replicas to mark.
    objective : ServiceLevelObjective
        SLA to mark.
    title : str
    """
    numbers = np.array([prediction.replicas for prediction in predictions])
    panels = 3 if any(power is not None for power in powers_w) else 2
    figure = Figure(figsize=(4.6 * panels, 3.6), layout="constrained", dpi=110)
    figure.suptitle(title)
    axes = figure.subplots(1, panels)
    level, percentile = axes[0], axes[1]
    level.plot(numbers, [100 * p.service_level for p in predictions], "o-", color=BLUE)
    level.axhline(objective.percentile, color=RED, linestyle="--", label="SLA")
    level.set(ylabel=f"% within {objective.response_time_ms:g} ms", ylim=(0, 102))
    percentile.plot(
        numbers,
        [p.percentile_ms if np.isfinite(p.percentile_ms) else np.nan for p in predictions],
        "o-",
        color=BLUE,
    )
    percentile.axhline(objective.response_time_ms, color=RED, linestyle="--", label="SLA")
    percentile.set(ylabel=f"{objective.percentile:g}th percentile, ms")
    percentile.set_ylim(bottom=0)
    if panels == 3:
        watts = [np.nan if power is None else power for power in powers_w]
        axes[2].plot(numbers, watts, "o-", color=ORANGE)
        axes[2].set(ylabel="mean power of all replicas, W")
    for panel in axes:
        panel.axvline(chosen, color=GRAY, linewidth=1, label=f"{chosen} replicas")
        panel.set(xlabel="replicas", xlim=(numbers[0] - 0.5, numbers[-1] + 0.5))
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.grid(alpha=0.3)
    level.legend(fontsize=8)
    figure.savefig(path)
