"""Charts of a load test for its page; None if there is no data for a chart."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator
from numpy.typing import NDArray

from autoscaler.simulator.reporting.svg import BAD, INK, ORACLE, SERIES, to_svg
from deployments.config.user_config import SLAConfig

Rows = Sequence[dict[str, Any]]

_SENT, _RIGHT, _REPLICAS, _MEDIAN, _TAIL = SERIES[0], SERIES[3], SERIES[2], SERIES[0], SERIES[1]
#: The axis is logarithmic if the largest percentile exceeds this multiple of the smallest.
LINEAR_UP_TO = 20
#: Line style of predictions, as opposed to measurements.
_DASHED = (0, (4, 1.5))


def load(seconds: Rows, service: Rows) -> str:
    """Draw the requests due, sent, answered and failed in each second, and the replicas below."""
    replicas = column(service, "replicas")
    known = bool(np.isfinite(replicas).any())

    def draw(figure: Figure) -> None:
        heights = (3, 1) if known else (1,)
        panels = figure.subplots(len(heights), sharex=True, height_ratios=heights, squeeze=False)
        top, below = panels[0, 0], panels[-1, 0]
        edges = _edges(seconds)
        due, sent = column(seconds, "scheduled"), column(seconds, "sent")
        top.stairs(due, edges, fill=True, color=ORACLE, alpha=0.35, label="due")
        top.stairs(sent, edges, baseline=None, color=_SENT, lw=2.4, alpha=0.6, label="sent")
        top.stairs(column(seconds, "ok"), edges, baseline=None, color=_RIGHT, label="right answers")
        failed = column(seconds, "failed")
        if failed.any():
            top.stairs(failed, edges, fill=True, color=BAD, alpha=0.8, label="failed")
        demand = column(service, "demand_per_s")
        if np.isfinite(demand).any():
            at = column(service, "at_s")
            top.step(at, demand, where="post", color=_REPLICAS, ls=_DASHED, label="sized for")
        top.set_ylabel("requests/s")
        _finish(top, len(seconds), bottom=0)
        if known:
            at = np.append(column(service, "at_s"), edges[-1])
            below.step(at, np.append(replicas, replicas[-1]), where="post", color=_REPLICAS, lw=2)
            below.set_ylim(0, np.nanmax(replicas) + 0.6)
            below.yaxis.set_major_locator(MaxNLocator(3, integer=True))
            below.set_ylabel("replicas")
            below.set_xlim(edges[0], edges[-1])
            below.set_xlabel("seconds")
            top.set_xlabel("")

    return to_svg(draw, 4.0 if known else 2.8, "load")


def response_times(windows: Rows, duration_s: float, service: Rows, sla: SLAConfig) -> str | None:
    """Draw percentiles of the response time, measured and predicted, and the SLA."""
    percentile = f"{sla.percentile:g}"
    curves = (
        ("50", "p50_ms", _MEDIAN, "median"),
        (percentile, "sla_percentile_ms", _TAIL, f"p{percentile}"),
    )
    if not np.isfinite(column(windows, "p50_ms")).any():
        return None

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        edges = np.append(column(windows, "start_s"), duration_s)
        at = column(service, "at_s")
        for name, key, color, label in curves:
            measured = column(windows, key)
            axes.stairs(measured, edges, baseline=None, color=color, lw=1.8, label=label)
            predicted = np.array([one["predicted_ms"].get(name, np.nan) for one in service])
            if np.isfinite(predicted).any():
                style: dict[str, Any] = {"color": color, "lw": 1.3, "ls": _DASHED}
                axes.plot(at, predicted, label=f"{label} predicted", **style)
        axes.axhline(sla.response_time_ms, color=BAD, lw=1.2, label=f"SLA: p{percentile}")
        axes.set_ylabel("response time, ms")
        shown = [column(windows, key) for _, key, _, _ in curves]
        if np.nanmax(shown) > LINEAR_UP_TO * np.nanmin(shown):
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("{x:g}")
            axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
            _finish(axes, edges[-1])
        else:
            _finish(axes, edges[-1])
            axes.set_ylim(0, 1.06 * max(float(np.nanmax(shown)), sla.response_time_ms))

    return to_svg(draw, 3.4, "response")


def in_time(seconds: Rows, sla: SLAConfig) -> str:
    """Draw the share of requests answered in time per second, and the SLA's share."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        share = 100 * column(seconds, "within_sla_share")
        edges = _edges(seconds)
        # Empty seconds have no share; they neither meet nor miss the SLA.
        level = np.where(np.isfinite(share), share, sla.percentile)
        bars: dict[str, Any] = {"baseline": sla.percentile, "fill": True}
        axes.stairs(np.maximum(level, sla.percentile), edges, color=_RIGHT, alpha=0.6, **bars)
        axes.stairs(np.minimum(level, sla.percentile), edges, color=BAD, **bars)
        axes.axhline(sla.percentile, color=INK, lw=0.9, label=f"SLA: {sla.percentile:g}%")
        lowest = min(float(np.nanmin(share, initial=100.0)), sla.percentile)
        room = 0.1 * (100 - lowest)
        axes.set_ylim(lowest - room, 100 + room)
        axes.set_ylabel("% in time")
        _finish(axes, len(seconds))

    return to_svg(draw, 1.9, "in-time")


def column(rows: Rows, name: str) -> NDArray[np.float64]:
    """Return one value of each row, as floats; None becomes NaN."""
    return np.array([np.nan if row[name] is None else row[name] for row in rows], dtype=float)


def _edges(seconds: Rows) -> NDArray[np.float64]:
    return np.arange(len(seconds) + 1.0)


def _finish(axes: Axes, duration_s: float, bottom: float | None = None) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=6, borderpad=0, handlelength=1.6)
    axes.set_xlabel("seconds")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(0, duration_s)
    if bottom is not None:
        axes.set_ylim(bottom=bottom)
