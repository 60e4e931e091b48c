"""Measure what the autoscaler learns from day to day.

    python -m benchmarks.simulated.learning TRACE... [--start-time-s S] [--peak N] [--risk R]
        [--hours H] [--requests] [--plot FILE] [--json]

The traces are joined and scaled so that the busiest second needs `--peak` replicas. Every ten
seconds the forecaster is asked for the demand, at the risk that the calibration has found so far
(`autoscaler.calibration`) or at a fixed one, and whole replicas are ordered for it. They serve one
start time later. Fewer are kept only after the hold, as in service. What a second offers beyond
what the fleet serves within the SLA is late, and a minute complies if at most 1% of it is.

No request is simulated, so a day takes seconds. `--requests` simulates the fleet with every request
as well, by the controller itself. Cost is relative to the oracle that knows each second and the
start time (`simulator.autoscalers.oracle`).
"""

import math
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
from matplotlib.figure import Figure
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from autoscaler.calibration import WindowCalibration
from autoscaler.forecasting.demand import DemandForecaster
from autoscaler.history.traces import load_trace
from autoscaler.scale_in import measured_hold_s
from autoscaler.settings import AutoscalerSettings
from benchmarks.arguments import json_option, plot_option
from benchmarks.inputs import GOOGLENET_P4
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from simulator.autoscalers.oracle import clairvoyant_schedule, required_replicas_by_second
from simulator.autoscalers.sojourn import SojournAutoscaler
from simulator.scenario import Scenario
from simulator.simulation import simulate
from simulator.start_time import StartTime
from sojourn.output import existing_file, print_json, print_table

FloatArray = NDArray[np.float64]
LATE_SHARE = 0.01
WINDOW_S = 60
DAY_S = 86_400
#: How often a number of replicas is decided, and the window of the offered rate.
EVERY_S = RATE_WINDOW_S = 10
#: Standard deviations of noise that must not undo a scale-in, as in `autoscaler.scale_in`.
NOISE_DEVIATIONS = 4.0
#: Requests per second within the SLA of 99% in 500 ms, of a device 20 times slower than a Tesla P4
#: with GoogLeNet: of a replica by itself, and of one in a fleet, where refused requests are retried
#: (`autoscaler.sizing.live.LiveSizing.fleet_rate_per_s`). They set the noise.
SLA_RATE_PER_S, FLEET_RATE_PER_S = 139.0, 148.0
PROFILE = Profile("slow", "device", 20 * GOOGLENET_P4.latency_ms)
OBJECTIVE = ServiceLevelObjective(500.0, 99.0)


@dataclass(frozen=True)
class Day:
    """The outcome of one day.

    Attributes
    ----------
    day : int
        From 1.
    compliant : float
        Fraction of the minutes that comply.
    over_oracle : float
        Replica-seconds over the oracle's.
    risk : float
        The risk at the end of the day.
    """

    day: int
    compliant: float
    over_oracle: float
    risk: float


def replay(
    offered: FloatArray, start_time_s: int, windows: float, risk: float | None
) -> tuple[FloatArray, FloatArray]:
    """Order replicas for a load, second by second.

    Parameters
    ----------
    offered : ndarray of float, shape (seconds,)
        Requests of each second.
    start_time_s : int
    windows : float
        Share of the minutes that should comply.
    risk : float or None
        A fixed risk; None calibrates it.

    Returns
    -------
    ordered, risks : ndarray of float, shape (seconds,)
        Replicas ordered, and the risk, in each second.
    """
    forecaster, calibration = DemandForecaster("auto", LATE_SHARE), WindowCalibration(windows)
    hold_steps = math.ceil(measured_hold_s(start_time_s, RATE_WINDOW_S) / EVERY_S)
    ordered, risks = np.zeros((2, offered.size))
    current = max(1.0, math.ceil(offered[0] / SLA_RATE_PER_S))
    ordered[:EVERY_S] = current
    demands: list[float] = []
    for end in range(EVERY_S, offered.size + 1, EVERY_S):
        newest = offered[end - EVERY_S : end]
        forecaster.observe(float(end), newest)
        calibration.judge(end, start_time_s, LATE_SHARE, forecaster.rates_of_window)
        in_force = calibration.risk if risk is None else risk
        forecast = forecaster.forecast(float(end), start_time_s, in_force)
        assert forecast is not None
        demands.append(forecast.demand_per_s)
        count = max(1.0, float(newest.sum()))
        with_noise = (1 + NOISE_DEVIATIONS / math.sqrt(count)) * demands[-1]
        cautious = max(*demands[-1 - hold_steps :], with_noise)
        required, kept = (
            max(1.0, math.ceil(rate / SLA_RATE_PER_S - 1e-9)) for rate in (demands[-1], cautious)
        )
        current = required if required > current else min(current, kept)
        calibration.note_order(float(end), current * FLEET_RATE_PER_S)
        ordered[end : end + EVERY_S] = current
        risks[end : end + EVERY_S] = in_force
    return ordered, risks


def simulated(offered: FloatArray, start_time_s: int, windows: float) -> Day:
    """Return the outcome of a fleet with every request, batch and report."""
    need = required_replicas_by_second(offered, SLA_RATE_PER_S)
    oracle = clairvoyant_schedule(need, start_time_s)
    settings = AutoscalerSettings(windows=windows)
    scenario = Scenario(
        PROFILE,
        OBJECTIVE,
        offered,
        start_time=StartTime(start_time_s),
        replicas=int(oracle[0]),
        max_replicas=10_000,
        autoscaler_settings=settings,
    )
    autoscaler = SojournAutoscaler(settings, max_replicas=scenario.max_replicas)
    run = simulate(scenario, autoscaler)
    return Day(
        day=1,
        compliant=run.compliant_windows,
        over_oracle=float(run.ordered.sum() / oracle.sum()),
        risk=autoscaler.autoscaler.risk,
    )


def by_day(
    offered: FloatArray, start_time_s: int, ordered: FloatArray, risks: FloatArray
) -> list[Day]:
    """Judge what was ordered, day by day."""
    before = np.concatenate((np.full(start_time_s, ordered[0]), ordered))
    ready = sliding_window_view(before, start_time_s + 1).min(axis=1)
    late = np.maximum(0.0, offered - FLEET_RATE_PER_S * ready)
    need = required_replicas_by_second(offered, SLA_RATE_PER_S)
    oracle = clairvoyant_schedule(need, start_time_s)
    days = []
    for begin in range(0, offered.size - WINDOW_S + 1, DAY_S):
        seconds = slice(begin, begin + (min(DAY_S, offered.size - begin) // WINDOW_S) * WINDOW_S)
        late_by_minute, by_minute = (
            series[seconds].reshape(-1, WINDOW_S).sum(axis=1) for series in (late, offered)
        )
        days.append(
            Day(
                day=begin // DAY_S + 1,
                compliant=float(np.mean(late_by_minute <= (LATE_SHARE + 1e-9) * by_minute)),
                over_oracle=float(ordered[seconds].sum() / oracle[seconds].sum()),
                risk=float(risks[seconds][-1]),
            )
        )
    return days


def plot(days: list[Day], path: Path) -> None:
    """Draw the share of the minutes that comply and the cost over the days."""
    figure = Figure(figsize=(8, 3.2))
    held, cost = figure.subplots(1, 2)
    numbers = [day.day for day in days]
    held.plot(numbers, [100 * day.compliant for day in days], marker="o")
    held.axhline(99, linestyle="--", linewidth=1, color="grey")
    held.set_ylabel("minutes that comply, %")
    cost.plot(numbers, [day.over_oracle for day in days], marker="o")
    cost.set_ylabel("cost over the oracle's")
    for panel in (held, cost):
        panel.set_xlabel("day")
        panel.set_xticks(numbers)
    figure.tight_layout()
    figure.savefig(path)


@click.command()
@click.argument("traces", nargs=-1, required=True, type=existing_file)
@click.option("--start-time-s", type=click.IntRange(min=1), default=60, show_default=True)
@click.option(
    "--peak",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Replicas that the busiest second needs.",
)
@click.option("--windows", default=0.99, show_default=True, help="Share of minutes to comply.")
@click.option("--risk", type=float, help="A fixed risk instead of a calibrated one.")
@click.option("--hours", type=float, help="Only the first hours of the load.")
@click.option("--requests", is_flag=True, help="Simulate every request as well; at most a day.")
@plot_option
@json_option
def main(
    traces: tuple[Path, ...],
    start_time_s: int,
    peak: int,
    windows: float,
    risk: float | None,
    hours: float | None,
    requests: bool,
    plot_file: Path | None,
    as_json: bool,
) -> None:
    """Measure what the autoscaler learns from day to day."""
    offered = np.concatenate([load_trace(path).astype(np.float64) for path in traces])
    offered *= peak * SLA_RATE_PER_S / offered.max()
    if hours is not None:
        offered = offered[: round(3600 * hours)]
    days = by_day(offered, start_time_s, *replay(offered, start_time_s, windows, risk))
    with_requests = simulated(offered, start_time_s, windows) if requests else None
    if plot_file is not None:
        plot(days, plot_file)
    if as_json:
        every = {"with_requests": asdict(with_requests)} if with_requests else {}
        print_json({"days": [asdict(day) for day in days], **every})
        return
    print_table(
        ["day", "comply %", "cost/oracle", "risk"],
        [
            (name, f"{100 * day.compliant:.2f}", f"{day.over_oracle:.3f}", f"{day.risk:.4f}")
            for name, day in [
                *((str(day.day), day) for day in days),
                *((("with every request", with_requests),) if with_requests else ()),
            ]
        ],
    )


if __name__ == "__main__":
    main()
