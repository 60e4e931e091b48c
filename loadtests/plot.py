"""The plot of a load test: rates, response times and the share within the SLA, over time."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator
from numpy.typing import NDArray

from deployments.config import SLAConfig

# Distinct in grey and to colour-blind readers (Okabe and Ito).
_BLACK, _BLUE, _ORANGE, _RED, _GREEN = "#222222", "#0072B2", "#E69F00", "#D55E00", "#009E73"


def save_plot(path: Path, rows: list[dict[str, Any]], result: dict[str, Any], title: str) -> None:
    """Plot a load test over time.

    Parameters
    ----------
    path : Path
        The file to write; its suffix sets the format.
    rows : list of dict
        The result of `loadtests.report.per_second`.
    result : dict
        The result of `loadtests.report.report`.
    title : str
        Title of the plot.
    """
    sla = SLAConfig(**result["sla"])
    second = np.array([row["second"] for row in rows])
    # The constrained layout leaves room for the legends beside the panels.
    figure = Figure(figsize=(10, 7.5), layout="constrained", dpi=110)
    FigureCanvasAgg(figure)
    rate, response, share = figure.subplots(3, 1, sharex=True, height_ratios=(3, 3, 1.6))
    verdict = "met" if result["sla_met"] else "not met"
    figure.suptitle(f"{title}\nSLA {sla.objective.in_words()}: {verdict}", fontsize=12)

    edges = np.append(second, second[-1] + 1)
    rate.stairs(
        _column(rows, "scheduled"),
        edges,
        baseline=None,
        color=_BLACK,
        linestyle="--",
        linewidth=1.5,
        label="due",
    )
    rate.stairs(_column(rows, "sent"), edges, baseline=None, color=_BLUE, label="sent")
    rate.stairs(_column(rows, "ok"), edges, baseline=None, color=_GREEN, label="right answers")
    rate.stairs(_column(rows, "failed"), edges, baseline=None, color=_RED, label="failed")
    rate.set_ylabel("requests per second")
    rate.set_ylim(bottom=0)

    middle = second + 0.5
    name = f"percentile {sla.percentile:g}"
    response.plot(middle, _column(rows, "sla_percentile_ms"), ".-", color=_ORANGE, label=name)
    response.plot(middle, _column(rows, "p50_ms"), ".-", color=_BLUE, label="median")
    response.axhline(
        sla.response_time_ms, color=_RED, linestyle="--", label=f"SLA {sla.response_time_ms:g} ms"
    )
    response.set_ylabel("response time (ms)")
    response.set_yscale("log")
    response.yaxis.set_major_formatter("{x:g}")
    response.yaxis.set_minor_formatter("{x:g}")
    response.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))

    in_time = 100 * _column(rows, "within_sla_share")
    share.plot(middle, in_time, ".-", color=_BLUE, label="within the SLA")
    share.axhline(sla.percentile, color=_RED, linestyle="--", label=f"SLA {sla.percentile:g}%")
    share.set_ylabel("% in time")
    lowest = min(np.nanmin(in_time, initial=100.0), sla.percentile)
    share.set_ylim(lowest - 0.1 * (100 - lowest), 100 + 0.1 * (100 - lowest))
    share.set_xlabel("seconds from the start, by when requests were due")
    share.xaxis.set_major_locator(MaxNLocator(integer=True))

    for axes in (rate, response, share):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.savefig(path)


def _column(rows: list[dict[str, Any]], name: str) -> NDArray[np.float64]:
    return np.array([np.nan if row[name] is None else row[name] for row in rows], dtype=float)
