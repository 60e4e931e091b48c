"""Measure what each forecast must over-provision to keep an SLA when replicas start slowly.

    python -m benchmarks.simulated.forecasts [--traces DIR] [--quick] [--json] [--plot FILE]

Every ten seconds a forecaster, which knows only the past, forecasts the demand up to the horizon,
and that capacity is ordered. Ordered capacity serves one horizon later; capacity that is no longer
ordered is gone at once. So the capacity at any time is the least that was ordered during the
horizon before it. A minute complies if at least 99% of its requests fit into the capacity.

Cost is the mean capacity ordered, relative to an oracle that knows the trace and orders the least
rate with which every minute that the horizon touches complies. The baseline "peak x f" orders the
busiest second of the last minute times a headroom f.

A warm-up is not counted: half of a trace of two days, four hours of a trace of a day, a quarter of
an hour of a trace of an hour. Capacity is any real number here; whole replicas are left to
`benchmarks.simulated.autoscaler`.
"""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from autoscaler.forecasting.demand import POOLS, DemandForecaster
from autoscaler.forecasting.load_history import RequiredRate
from autoscaler.forecasting.point_forecasts import trailing_max
from autoscaler.history.traces import load_trace
from benchmarks.arguments import json_option, plot_option, quick_option
from benchmarks.inputs import AZURE_CONVERSATION_TRACE
from sojourn.output import print_json, print_table

FloatArray = NDArray[np.float64]
#: Fraction of a minute's requests that may be late.
LATE_SHARE = 0.01
FORECAST_EVERY_S = 10
WINDOW_S = 60
HEADROOMS = (1.0, 1.1, 1.2, 1.3, 1.5, 2.0, 3.0)
RISKS = (0.05, 0.02, 0.01, 0.005, 0.002, 0.001)


@dataclass(frozen=True)
class Row:
    """The outcome of one forecast on one trace.

    Attributes
    ----------
    trace : str
    horizon_s : int
        How long ordered capacity takes to serve.
    forecast : str
    knob : float
        The risk, or the headroom of the baseline.
    missed : float
        Fraction of the time in which more was required within the horizon than was ordered; the
        risk is its target.
    compliant : float
        Fraction of the one-minute windows that comply.
    over_oracle : float
        Mean capacity ordered over the oracle's.
    over_mean : float
        Mean capacity ordered over the mean load.
    call_ms : float
        Mean CPU time of one forecast, including observing the ten seconds before it.
    """

    trace: str
    horizon_s: int
    forecast: str
    knob: float
    missed: float
    compliant: float
    over_oracle: float
    over_mean: float
    call_ms: float


class Trial:
    """A trace and a horizon on which forecasts are compared.

    Parameters
    ----------
    name : str
    rates : FloatArray, shape (seconds,)
        Requests of each second.
    horizon_s : int
    """

    def __init__(self, name: str, rates: FloatArray, horizon_s: int) -> None:
        self.name, self.rates, self.horizon_s = name, rates, horizon_s
        days = rates.size / 86_400
        self.warm_up = rates.size // 2 if days > 1.5 else 14_400 if days > 0.5 else 900
        self.warm_up -= self.warm_up % WINDOW_S
        window = RequiredRate(0.5 * LATE_SHARE)
        self._required = np.array([window.push(rate) for rate in rates.tolist()])
        self.oracle = self._oracle_orders()

    def judge(self, forecast: str, knob: float, ordered: FloatArray, call_ms: float) -> Row:
        """Sum up what ordering `ordered` at the end of each second leads to."""
        served = np.full_like(ordered, np.inf)
        served[1:] = -trailing_max(-ordered, self.horizon_s + 1)[:-1]
        late = _sum_by_window(np.maximum(self.rates - served, 0.0)[self.warm_up :])
        sent = _sum_by_window(self.rates[self.warm_up :])
        until = self.rates.size - self.horizon_s
        ahead = trailing_max(self._required, self.horizon_s)[self.horizon_s :]
        counted = slice(self.warm_up, until)
        mean = float(ordered[self.warm_up :].mean())
        return Row(
            trace=self.name,
            horizon_s=self.horizon_s,
            forecast=forecast,
            knob=knob,
            missed=float(np.mean(ahead[counted] > ordered[:until][counted])),
            compliant=float(np.mean(late <= (LATE_SHARE + 1e-9) * sent)),
            over_oracle=mean / float(self.oracle[self.warm_up :].mean()),
            over_mean=mean / float(self.rates[self.warm_up :].mean()),
            call_ms=call_ms,
        )

    def replay(self, forecast: str, risk: float) -> Row:
        """Order what a forecaster says, and sum up the outcome."""
        forecaster = DemandForecaster(forecast)
        ordered = np.zeros(self.rates.size)
        begin_s = time.process_time()
        demand = 0.0
        for end in range(FORECAST_EVERY_S, self.rates.size + 1, FORECAST_EVERY_S):
            begin = end - FORECAST_EVERY_S
            ordered[begin : end - 1] = demand
            forecaster.observe(end, self.rates[begin:end])
            made = forecaster.forecast(end, self.horizon_s, risk)
            assert made is not None
            ordered[end - 1 :] = demand = made.demand_per_s
        calls = self.rates.size // FORECAST_EVERY_S
        return self.judge(forecast, risk, ordered, 1e3 * (time.process_time() - begin_s) / calls)

    def _oracle_orders(self) -> FloatArray:
        levels = np.zeros(self.rates.size)
        for begin in range(0, self.rates.size, WINDOW_S):
            window = RequiredRate(LATE_SHARE)
            for rate in self.rates[begin : begin + WINDOW_S].tolist():
                level = window.push(rate)
            levels[begin : begin + WINDOW_S] = level
        # An order at the end of second u must cover the seconds up to u + horizon + 1.
        ahead = trailing_max(levels[::-1], self.horizon_s + 1)[::-1]
        return np.append(ahead[1:], levels[-1])


def rows(traces: Path, quick: bool) -> Iterator[Row]:
    """Run all forecasts on all traces in a folder."""
    horizons = (60,) if quick else (10, 60, 300)
    risks = RISKS[1:4] if quick else RISKS
    for path in sorted(traces.glob("*.csv*")):
        rates = load_trace(path).astype(np.float64)
        for horizon_s in horizons:
            trial = Trial(path.name.split(".")[0], rates, horizon_s)
            yield trial.judge("oracle", 0.0, trial.oracle, 0.0)
            peak = trailing_max(rates, WINDOW_S)
            for headroom in HEADROOMS:
                yield trial.judge("peak x f", headroom, headroom * peak, 0.0)
            for pool in ("last", "auto") if quick or horizon_s != 60 else tuple(POOLS):
                for risk in risks:
                    yield trial.replay(pool, risk)


def _sum_by_window(series: FloatArray) -> FloatArray:
    whole = series.size // WINDOW_S * WINDOW_S
    sums: FloatArray = series[:whole].reshape(-1, WINDOW_S).sum(axis=1)
    return sums


def plot(results: list[Row], path: Path) -> None:
    """Draw compliance against cost at a horizon of 60 s, a panel per trace."""
    at_60 = [row for row in results if row.horizon_s == 60]
    traces = list(dict.fromkeys(row.trace for row in at_60))
    figure = Figure(figsize=(4.2 * len(traces), 4))
    panels = figure.subplots(1, len(traces), squeeze=False)
    for panel, trace in zip(panels[0], traces, strict=True):
        for name in dict.fromkeys(row.forecast for row in at_60):
            line = [row for row in at_60 if row.trace == trace and row.forecast == name]
            panel.plot(
                [row.over_oracle for row in line],
                [100 * row.compliant for row in line],
                marker="o",
                markersize=3,
                linewidth=2.5 if name == "auto" else 1,
                label=name,
            )
        panel.set_xscale("log")
        panel.set_ylim(80, 100.2)
        panel.set_title(trace, fontsize=9)
        panel.xaxis.set_major_formatter("{x:g}")
        panel.xaxis.set_minor_formatter("{x:g}")
        panel.set_xlabel("cost over the oracle's")
    panels[0][0].set_ylabel("one-minute windows that comply, %")
    panels[0][-1].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path)


@click.command()
@click.option(
    "--traces",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=AZURE_CONVERSATION_TRACE.parent,
    help="Folder of traces: CSV with the header second,requests, gzipped or not.  "
    "[default: configs/traces]",
)
@quick_option("Only the 60 s horizon, the forecasts last and auto, and three risks.")
@plot_option
@json_option
def main(traces: Path, quick: bool, plot_file: Path | None, as_json: bool) -> None:
    """Measure what each forecast must over-provision to keep an SLA."""
    results = list(rows(traces, quick))
    if plot_file is not None:
        plot(results, plot_file)
    if as_json:
        print_json({"rows": [asdict(row) for row in results]})
        return
    for trace, horizon_s in dict.fromkeys((row.trace, row.horizon_s) for row in results):
        print_table(
            ["forecast", "knob", "missed %", "comply %", "cost/oracle", "cost/mean", "call ms"],
            [
                [
                    row.forecast,
                    row.knob,
                    f"{100 * row.missed:.2f}",
                    f"{100 * row.compliant:.2f}",
                    f"{row.over_oracle:.3f}",
                    f"{row.over_mean:.3f}",
                    f"{row.call_ms:.3f}",
                ]
                for row in results
                if (row.trace, row.horizon_s) == (trace, horizon_s)
            ],
            f"{trace}, {horizon_s} s to start a replica",
        )


if __name__ == "__main__":
    main()
