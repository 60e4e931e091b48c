"""Charts of simulated runs for the report; None without data."""

import math
from collections.abc import Callable
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator
from numpy.typing import NDArray

from autoscaler.simulator.reporting.comparison import Comparison
from autoscaler.simulator.reporting.svg import BAD, FAINT, INK, ORACLE, SERIES, to_svg
from autoscaler.simulator.results import Run

FloatArray = NDArray[np.float64]

# More points cannot be distinguished over the width of a page.
_MAX_POINTS = 480
_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600)

Picture = str | None


def load(comparison: Comparison) -> Picture:
    """Draw the offered load and the arrival rates that the autoscalers sized for."""
    step_s = _step_s(comparison.seconds)
    forecasting = [
        (color, run) for color, run in _colored(comparison) if np.isfinite(run.forecast_per_s).any()
    ]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        at, unit = _midpoints(comparison.seconds, step_s)
        offered = comparison.runs[0].offered
        axes.fill_between(
            at, _step_means(offered, step_s), color=ORACLE, alpha=0.35, lw=0, step="mid"
        )
        _add_legend_entry(axes, "offered", ORACLE)
        for color, run in forecasting:
            axes.plot(at, _step_means(run.forecast_per_s, step_s), color=color, lw=1.4)
            _add_legend_entry(axes, f"{comparison.label(run)} sized for", color)
        axes.set_ylabel("requests/s")
        axes.set_ylim(bottom=0)
        _time_axis(axes, comparison.seconds, unit)

    return to_svg(draw, 2.6, "load")


def replicas(comparison: Comparison) -> Picture:
    """Draw each autoscaler's replicas over time, one row each, in front of the oracle's."""
    oracle = comparison.oracle
    shown = [
        (color, run) for color, run in _colored(comparison) if not comparison.is_oracle(run.name)
    ]
    if not shown or (oracle is None and all(np.ptp(run.ready) == 0 for _, run in shown)):
        return None
    step_s = _step_s(comparison.seconds)
    at, unit = _midpoints(comparison.seconds, step_s)
    peaks = [float(_step_means(run.ordered, step_s).max()) for _, run in shown]
    reference = float(_step_means(oracle.ready, step_s).max()) if oracle else max(peaks)
    # All rows share one scale, except those so large that the others would become flat.
    common = max([reference, *(peak for peak in peaks if peak <= 4 * reference)])

    def draw_row(axes: Axes, color: str, run: Run) -> None:
        if oracle:
            oracles = _step_means(oracle.ready, step_s)
            axes.fill_between(at, oracles, color=ORACLE, alpha=0.35, lw=0, step="mid")
        ordered, ready = _step_means(run.ordered, step_s), _step_means(run.ready, step_s)
        axes.plot(at, ordered, color=color, lw=0.9, ls=(0, (2, 1.5)), drawstyle="steps-mid")
        axes.plot(at, ready, color=color, lw=1.5, drawstyle="steps-mid")
        axes.set_ylim(0, 1.08 * max(common, float(ordered.max())))
        axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
        axes.set_title(comparison.label(run), color=color)
        _time_axis(axes, comparison.seconds, unit)
        axes.label_outer()

    def draw(figure: Figure) -> None:
        rows = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (color, run) in zip(rows, shown, strict=True):
            draw_row(axes, color, run)
        figure.supylabel("replicas", color=FAINT, fontsize=10)

    return to_svg(draw, 0.7 + 1.15 * len(shown), "replicas")


def response_times(
    comparison: Comparison, predicted_cdf: Callable[[FloatArray], FloatArray] | None = None
) -> Picture:
    """Draw the share of requests not answered within a time in ms, refused ones included."""
    objective = comparison.objective
    shown = [(color, run) for color, run in _colored(comparison) if run.histogram.sum() > 0]
    if not shown:
        return None
    # The tail of an overloaded run must not compress the part around the SLA.
    ends_ms = [run.response_percentile_ms(99.9) for _, run in shown]
    end_ms = min(max(1.5 * objective.response_time_ms, *ends_ms), 4 * objective.response_time_ms)
    floor = max(1e-6, min(1e-3, (1 - objective.percentile / 100) / 20))

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for color, run in shown:
            answered = np.concatenate(([0.0], np.cumsum(run.histogram)))
            offered = max(float(run.offered.sum()), float(answered[-1]))
            longer = np.maximum(1 - answered / offered, floor / 10)
            near = run.bin_edges_ms <= 1.1 * end_ms
            axes.semilogy(run.bin_edges_ms[near], 100 * longer[near], color=color, lw=1.6)
            _add_legend_entry(axes, comparison.label(run), color)
        if predicted_cdf is not None:
            at_ms = np.linspace(0, end_ms, 300)
            longer = np.maximum(1 - predicted_cdf(at_ms), floor / 10)
            axes.semilogy(at_ms, 100 * longer, color=INK, lw=1.2, ls="--")
            _add_legend_entry(axes, "predicted (dashed)", INK)
        late = 100 - objective.percentile
        axes.axvline(objective.response_time_ms, color=BAD, lw=0.9)
        axes.fill_between(
            [objective.response_time_ms, end_ms], late, 100, color=BAD, alpha=0.12, lw=0
        )
        axes.annotate(
            f"over the SLA:\nmore than {late:.4g}% later\nthan {objective.response_time_ms:g} ms",
            (end_ms, 100),
            xytext=(-6, -8),
            textcoords="offset points",
            ha="right",
            va="top",
            color=BAD,
        )
        axes.set(xlabel="response time (ms)", ylabel="still waiting (%)")
        axes.set(xlim=(0, end_ms), ylim=(100 * floor, 100))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_locator(NullLocator())

    return to_svg(draw, 3.2, "response")


_UNITS = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0}


def _colored(comparison: Comparison) -> list[tuple[str, Run]]:
    """Return the runs with their colors; the oracle has its own."""
    colors = cycle(SERIES)
    return [
        (ORACLE if comparison.is_oracle(run.name) else next(colors), run) for run in comparison.runs
    ]


def _step_s(seconds: int) -> int:
    """Return the shortest step that a page can show."""
    return next((s for s in _STEPS_S if seconds / s <= _MAX_POINTS), seconds // _MAX_POINTS)


def _step_means(values: FloatArray, step_s: int) -> FloatArray:
    """Return the mean of each step over its finite values; NaN if it has none."""
    starts = np.arange(0, values.size, step_s)
    known = np.isfinite(values)
    counts = np.add.reduceat(known.astype(float), starts)
    sums = np.add.reduceat(np.where(known, values, 0.0), starts)
    return np.divide(sums, counts, out=np.full_like(sums, math.nan), where=counts > 0)


def _midpoints(seconds: int, step_s: int) -> tuple[FloatArray, str]:
    unit = "hours" if seconds > 2 * 3600 else "minutes" if seconds > 300 else "seconds"
    starts = np.arange(0, seconds, step_s, dtype=float)
    return (starts + np.minimum(starts + step_s, seconds)) / 2 / _UNITS[unit], unit


def _time_axis(axes: Axes, seconds: int, unit: str) -> None:
    axes.set_xlim(0, seconds / _UNITS[unit])
    axes.set_xlabel(unit)


def _add_legend_entry(axes: Axes, text: str, color: str) -> None:
    """Add a name in its color to the legend, which stands above the axes without a box."""
    axes.plot([], [], "s", color=color, label=text)
    longest = max(map(len, axes.get_legend_handles_labels()[1]))
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 0.99), ncols=max(1, int(120 / (longest + 6))),
        borderpad=0, handletextpad=0.2, columnspacing=1.4, borderaxespad=0.2,
    )  # fmt: skip
