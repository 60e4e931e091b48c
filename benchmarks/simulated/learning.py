"""Measure what the autoscaler learns from day to day.

    python -m benchmarks.simulated.learning TRACE... [--start-time-s S] [--peak N] [--risk R]
        [--hours H] [--requests] [--plot FILE] [--json]
    python -m benchmarks.simulated.learning TRACE... --first-days 6,7,8,9 --history-days 0,1,3
        [--by-minute]

The traces are joined and scaled so that the busiest second needs `--peak` replicas. Every ten
seconds the forecaster is asked for the demand, at the risk that the calibration has found so far
(`autoscaler.calibration`) or at a fixed one, and whole replicas are ordered for it. They serve one
start time later. Fewer are kept only after the hold, as in service. What a second offers beyond
what the fleet serves within the SLA is late, and a minute complies if at most 1% of it is.

With `--first-days` a service begins at each of these days with no past, or with a history of the
days before it (`autoscaler.history`), and that day alone is judged.

No request is simulated, so a day takes seconds. `--requests` simulates the fleet with every request
as well, by the controller itself. Cost is relative to the oracle that knows each second and the
start time (`simulator.autoscalers.oracle`).
"""

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
import numpy as np
from matplotlib.figure import Figure
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from autoscaler.history.learning import EVERY_S, FleetReplay, FleetSetting, learn
from autoscaler.history.traces import Trace, load_trace
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
    offered: FloatArray,
    start_time_s: int,
    windows: float,
    risk: float | None,
    history: Trace | None = None,
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
    history : Trace, optional
        The load before, at negative times.

    Returns
    -------
    ordered, risks : ndarray of float, shape (seconds,)
        Replicas ordered, and the risk, in each second.
    """
    setting = fleet_setting(start_time_s, windows)
    learned = learn(history, setting) if history is not None and history.counts.size else None
    fleet = FleetReplay(setting, risk, learned)
    ordered, risks = np.zeros((2, offered.size))
    ordered[:EVERY_S] = max(1.0, math.ceil(offered[0] / SLA_RATE_PER_S))
    for end in range(EVERY_S, offered.size + 1, EVERY_S):
        ordered[end : end + EVERY_S] = fleet.decide(end, offered[end - EVERY_S : end])
        risks[end : end + EVERY_S] = fleet.risk
    return ordered, risks


def fleet_setting(start_time_s: int, windows: float) -> FleetSetting:
    """Return what the replay knows of the fleet."""
    return FleetSetting(
        forecast="auto",
        late_share_allowed=LATE_SHARE,
        windows=windows,
        start_time_s=start_time_s,
        hold_s=measured_hold_s(start_time_s, EVERY_S),
        sla_rate_per_s=SLA_RATE_PER_S,
        fleet_rate_per_s=FLEET_RATE_PER_S,
    )


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


def first_day(
    offered: FloatArray, day: int, history_days: int, step_s: int, start_time_s: int, windows: float
) -> Day:
    """Return the outcome of a day with which a service begins, after a history of some days."""
    begin, end = (day - 1) * DAY_S, day * DAY_S
    before = offered[begin - history_days * DAY_S : begin].reshape(-1, step_s).sum(axis=1)
    history = Trace(before, step_s, -history_days * DAY_S, False)
    orders = replay(offered[begin:end], start_time_s, windows, None, history)
    return replace(by_day(offered[begin:end], start_time_s, *orders)[0], day=day)


def print_first_days(outcomes: dict[int, list[Day]]) -> None:
    """Print a row for each length of the history, with the means over the days."""
    names = [f"day {day.day}" for day in next(iter(outcomes.values()))]
    print_table(
        ["days of history", *names, "mean"],
        [
            (
                str(history_days),
                *(f"{100 * day.compliant:.2f} at {day.over_oracle:.3f}" for day in days),
                f"{100 * np.mean([day.compliant for day in days]):.2f} at "
                f"{np.mean([day.over_oracle for day in days]):.3f}",
            )
            for history_days, days in outcomes.items()
        ],
    )


def plot(days: list[Day], path: Path) -> None:
    """Draw the share of the minutes that comply and the cost over the days."""
    figure = Figure(figsize=(8, 3.2))
    held, cost = figure.subplots(1, 2)
    numbers = [day.day for day in days]
    held.plot(numbers, [100 * day.compliant for day in days], marker="o")
    held.axhline(99, linestyle="--", linewidth=1, color="gray")
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
@click.option("--first-days", default="", help="Days with which a service begins, such as 6,7.")
@click.option("--history-days", default="0,1,3", show_default=True, help="For --first-days.")
@click.option("--by-minute", is_flag=True, help="The history knows the requests by the minute.")
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
    first_days: str,
    history_days: str,
    by_minute: bool,
    requests: bool,
    plot_file: Path | None,
    as_json: bool,
) -> None:
    """Measure what the autoscaler learns from day to day."""
    offered = np.concatenate([load_trace(path).astype(np.float64) for path in traces])
    offered *= peak * SLA_RATE_PER_S / offered.max()
    if first_days:
        step_s = 60 if by_minute else 1
        outcomes = {
            length: [
                first_day(offered, int(day), length, step_s, start_time_s, windows)
                for day in first_days.split(",")
            ]
            for length in map(int, history_days.split(","))
        }
        if as_json:
            print_json({str(n): [asdict(day) for day in days] for n, days in outcomes.items()})
        else:
            print_first_days(outcomes)
        return
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
