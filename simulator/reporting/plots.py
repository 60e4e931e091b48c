"""Pictures of simulated runs, for the report. A picture for which there is no data is None."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from simulator.reporting.comparison import Comparison, percent, times_oracle
from simulator.reporting.svg import BAD, FAINT, INK, ORACLE, SERIES, to_svg
from simulator.results import WINDOW_S, Run

FloatArray = NDArray[np.float64]

# More points than this cannot be told apart over the width of a page.
_MOST_POINTS = 480
_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600)

Picture = str | None


def cost_and_compliance(comparison: Comparison) -> Picture:
    """Draw each autoscaler's share of compliant windows over its cost beside the oracle's."""
    rows = {row.name: row for row in comparison.rows}
    points = [
        (color, rows[run.name])
        for color, run in zip(_colors(comparison), comparison.runs, strict=True)
    ]
    if len(points) < 2 or any(row.over_oracle is None for _, row in points):
        return None

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        best = _best_level(comparison)
        for color, row in points:
            level = float(_nines(np.array(row.compliant_windows), best))
            text = f"{row.label}  {percent(row.compliant_windows)}, {times_oracle(row)}"
            axes.plot(
                row.over_oracle or 0.0, level, "o", color=color, ms=9, clip_on=False, label=text
            )
        _cost_axis(axes, [row.over_oracle or 0.0 for _, row in points])
        axes.set_xlabel("replica-hours, times the oracle's")
        _level_axis(axes, comparison.objective.percentile, best)
        axes.set_title("minutes that met the SLA", color=FAINT, fontweight="normal")
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), labelspacing=0.8)

    return to_svg(draw, 3.2, "cost")


def load(comparison: Comparison) -> Picture:
    """Draw what clients offered, and the rates that autoscalers sized for."""
    step_s = _step_s(comparison.seconds)
    told = [
        (color, run)
        for color, run in zip(_colors(comparison), comparison.runs, strict=True)
        if np.isfinite(run.forecast_per_s).any()
    ]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        at, unit = _times(comparison.seconds, step_s)
        offered = comparison.runs[0].offered
        axes.fill_between(at, _mean(offered, step_s), color=ORACLE, alpha=0.35, lw=0, step="mid")
        _name(axes, "offered", ORACLE)
        for color, run in told:
            axes.plot(at, _mean(run.forecast_per_s, step_s), color=color, lw=1.4)
            _name(axes, f"{comparison.label(run)} sized for", color)
        axes.set_ylabel("requests/s")
        axes.set_ylim(bottom=0)
        _time_axis(axes, comparison.seconds, unit)

    return to_svg(draw, 2.6, "load")


def replicas(comparison: Comparison) -> Picture:
    """Draw each autoscaler's replicas over time, a row each, before those of the oracle."""
    oracle = comparison.oracle
    shown = [
        (color, run)
        for color, run in zip(_colors(comparison), comparison.runs, strict=True)
        if not comparison.is_oracle(run.name)
    ]
    if not shown or (oracle is None and all(np.ptp(run.ready) == 0 for _, run in shown)):
        return None
    step_s = _step_s(comparison.seconds)
    at, unit = _times(comparison.seconds, step_s)
    peaks = [float(_mean(run.ordered, step_s).max()) for _, run in shown]
    reference = float(_mean(oracle.ready, step_s).max()) if oracle else max(peaks)
    # One scale for all, but for who has so many that the others would lie on the ground.
    common = max([reference, *(peak for peak in peaks if peak <= 4 * reference)])

    def draw(axes: Axes, color: str, run: Run) -> None:
        if oracle:
            held = _mean(oracle.ready, step_s)
            axes.fill_between(at, held, color=ORACLE, alpha=0.35, lw=0, step="mid")
        ordered, ready = _mean(run.ordered, step_s), _mean(run.ready, step_s)
        axes.plot(at, ordered, color=color, lw=0.9, ls=(0, (2, 1.5)), drawstyle="steps-mid")
        axes.plot(at, ready, color=color, lw=1.5, drawstyle="steps-mid")
        axes.set_ylim(0, 1.08 * max(common, float(ordered.max())))
        axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))

    return _rows(comparison, shown, unit, "replicas", draw)


def compliance(comparison: Comparison) -> Picture:
    """Draw the share in time of every one-minute window, a row for each autoscaler."""
    if comparison.seconds < 2 * WINDOW_S:
        return None
    shown = list(zip(_colors(comparison), comparison.runs, strict=True))
    percentile = comparison.objective.percentile
    best = _best_level(comparison)
    _, unit = _times(comparison.seconds, 1)
    limit = float(_nines(np.array(percentile / 100), best))
    starts = np.arange(0, comparison.seconds, WINDOW_S, dtype=float)
    edges = np.append(starts, comparison.seconds) / _UNITS[unit]

    def draw(axes: Axes, color: str, run: Run) -> None:
        level = _nines(run.windows_in_time(), best)
        late = np.where(run.compliant(), limit, level)
        axes.stairs(limit * np.ones_like(late), edges, baseline=late, fill=True, color=BAD)
        axes.stairs(
            np.maximum(level, limit), edges, baseline=limit, fill=True, color=color, alpha=0.6
        )
        axes.axhline(limit, color=INK, lw=0.9)
        _level_axis(axes, percentile, best)

    return _rows(comparison, shown, unit, "requests in time", draw)


def power(comparison: Comparison) -> Picture:
    """Draw the power of the fleets over time; None where no energy is known."""
    shown = [
        (color, run)
        for color, run in zip(_colors(comparison), comparison.runs, strict=True)
        if np.isfinite(run.energy_j).all()
    ]
    if not shown:
        return None
    step_s = max(_step_s(comparison.seconds), min(WINDOW_S, max(1, comparison.seconds // 20)))

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        at, unit = _times(comparison.seconds, step_s)
        for color, run in shown:
            axes.plot(at, _mean(run.energy_j, step_s), color=color, lw=1.4)
            _name(axes, comparison.label(run), color)
        axes.set_ylabel("power (W)")
        axes.set_ylim(0, 1.08 * max(float(_mean(run.energy_j, step_s).max()) for _, run in shown))
        _time_axis(axes, comparison.seconds, unit)

    return to_svg(draw, 2.6, "power")


def response_times(
    comparison: Comparison, predicted_cdf: Callable[[FloatArray], FloatArray] | None = None
) -> Picture:
    """Draw the share of requests that are not answered within a time, refused ones included.

    Parameters
    ----------
    comparison : Comparison
    predicted_cdf : callable, optional
        Share that the model predicts to be answered within times in ms.
    """
    objective = comparison.objective
    shown = [
        (color, run)
        for color, run in zip(_colors(comparison), comparison.runs, strict=True)
        if run.histogram.sum() > 0
    ]
    if not shown:
        return None
    # The far end of a run that was overrun would squeeze all that is near the SLA.
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
            _name(axes, comparison.label(run), color)
        if predicted_cdf is not None:
            at_ms = np.linspace(0, end_ms, 300)
            longer = np.maximum(1 - predicted_cdf(at_ms), floor / 10)
            axes.semilogy(at_ms, 100 * longer, color=INK, lw=1.2, ls="--")
            _name(axes, "predicted (dashed)", INK)
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


def _rows(
    comparison: Comparison,
    shown: Sequence[tuple[str, Run]],
    unit: str,
    y_label: str,
    draw: Callable[[Axes, str, Run], None],
) -> Picture:
    """Draw one row of axes for each run, over the same time."""

    def draw_all(figure: Figure) -> None:
        axes = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
        for row, (color, run) in zip(axes, shown, strict=True):
            draw(row, color, run)
            row.set_title(comparison.label(run), color=color)
            _time_axis(row, comparison.seconds, unit)
            row.label_outer()
        axes[-1].set_xlabel(unit)
        figure.supylabel(y_label, color=FAINT, fontsize=10)

    return to_svg(draw_all, 0.7 + 1.15 * len(shown), y_label.split()[0])


def _colors(comparison: Comparison) -> list[str]:
    """Give each run its colour; the oracle's is no other's."""
    colors, used = [], 0
    for run in comparison.runs:
        oracle = comparison.is_oracle(run.name)
        colors.append(ORACLE if oracle else SERIES[used % len(SERIES)])
        used += not oracle
    return colors


def _step_s(seconds: int) -> int:
    """Give the shortest step that a page can show."""
    return next((s for s in _STEPS_S if seconds / s <= _MOST_POINTS), seconds // _MOST_POINTS)


def _mean(values: FloatArray, step_s: int) -> FloatArray:
    """Give the mean of each step; of the last one's own seconds; NaN where it has nothing else."""
    starts = np.arange(0, values.size, step_s)
    known = np.isfinite(values)
    counts = np.add.reduceat(known.astype(float), starts)
    sums = np.add.reduceat(np.where(known, values, 0.0), starts)
    return np.divide(sums, counts, out=np.full_like(sums, math.nan), where=counts > 0)


def _times(seconds: int, step_s: int) -> tuple[FloatArray, str]:
    """Give the middles of the steps, and their unit."""
    unit = "hours" if seconds > 2 * 3600 else "minutes" if seconds > 300 else "seconds"
    starts = np.arange(0, seconds, step_s, dtype=float)
    return (starts + np.minimum(starts + step_s, seconds)) / 2 / _UNITS[unit], unit


def _time_axis(axes: Axes, seconds: int, unit: str) -> None:
    axes.set_xlim(0, seconds / _UNITS[unit])
    axes.set_xlabel(unit)


def _best_level(comparison: Comparison) -> float:
    """Give the share in time that is drawn at the top: a nine beyond the SLA's."""
    return 1 - (1 - comparison.objective.percentile / 100) / 10


def _nines(share: FloatArray, best: float) -> FloatArray:
    """Put shares on the scale of the nines: 0%, 90%, 99%, 99.9% are at 0, 1, 2, 3."""
    level: FloatArray = -np.log10(np.maximum(1 - share, 1 - best))
    return level


def _level_axis(axes: Axes, percentile: float, best: float) -> None:
    limit = -math.log10(1 - percentile / 100)
    top = -math.log10(1 - best)
    marks = [k for k in range(math.ceil(top)) if min(abs(k - limit), abs(k - top)) > 0.5]
    ticks = {float(k): f"{100 - 100 * 10.0**-k:.8g}%" for k in marks}
    ticks |= {limit: f"{percentile:g}%", top: f"\N{GREATER-THAN OR EQUAL TO} {100 * best:.8g}%"}
    axes.yaxis.set_major_locator(FixedLocator(list(ticks)))
    axes.yaxis.set_major_formatter(lambda value, _: ticks[min(ticks, key=lambda t: abs(t - value))])
    axes.set_ylim(0, 1.04 * top)
    axes.axhline(limit, color=BAD, lw=0.9)


def _name(axes: Axes, text: str, color: str) -> None:
    """Add a name in its colour to the lines above the axes, as a legend that needs no box."""
    axes.plot([], [], "s", color=color, label=text)
    longest = max(len(str(line.get_label())) for line in axes.lines if _is_named(line))
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 0.99), ncols=max(1, int(120 / (longest + 6))),
        borderpad=0, handletextpad=0.2, columnspacing=1.4, borderaxespad=0.2,
    )  # fmt: skip


def _is_named(line: Line2D) -> bool:
    return not str(line.get_label()).startswith("_")


def _cost_axis(axes: Axes, costs: Sequence[float]) -> None:
    """Set an x axis of multiples; logarithmic where they are far apart."""
    low, high = min(0.95, *costs), max(1.1, *costs)
    if high > 4 * low:
        axes.set_xscale("log")
        axes.set_xlim(low / 1.1, high * 1.1)
        ticks = [step * 10.0**k for k in range(-3, 6) for step in (1, 2, 5)]
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.set_xlim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.3g}\N{MULTIPLICATION SIGN}")
