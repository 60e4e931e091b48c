"""How cheap a forecast could be: perfect knowledge, hindsight, and a learned forecaster.

    python -m benchmarks.simulated.forecast_limit --traces DIR [--days D,D,...] [--start-time-s S]
        [--quick] [--json]

Days of the Twitter trace that no autoscaler is judged on, superposed as in
`benchmarks.simulated.autoscaler`, one after the other. Every ten seconds a rule says how much to
provide for, and whole replicas are ordered for it. Start times are random, and some starts fail, as
there; replicas go by the autoscaler's own rule. No request is simulated: what a second offers
beyond what the replicas serve is late. Each rule has a knob, and the cost at which it holds 99% of
the minutes is read from its curve, between two points in a straight line. Learning needs
scikit-learn.

- *perfect*: the highest rate required in any minute until the horizon, times a headroom.
- *auto*: the forecaster of the autoscaler, at a fixed risk.
- *a pair*: a constant margin on one point forecast, and jumps expected from one share of the past
  rounds on (`autoscaler.forecasting`). Picked with hindsight: one for all days, or one for each.
- *learned*: quantiles of the demand by gradient boosting on features of the past
  (`benchmarks.simulated.forecast_learner`), learned on the other days, later ones included.
- *learned, same day*: the same, learned on the day itself, which is a bound on its features.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from autoscaler.forecasting.backtest import min_forecast_per_s
from autoscaler.forecasting.demand import DemandForecaster
from autoscaler.forecasting.load_history import LoadHistory
from autoscaler.forecasting.point_forecasts import LAST, LINEAR, PEAKS
from autoscaler.forecasting.recurring import JumpCalendar, Recurrence
from autoscaler.scale_in import ScaleInGuard, measured_hold_s
from benchmarks.arguments import json_option, quick_option
from benchmarks.inputs import GOOGLENET_P4
from benchmarks.simulated.arena import cases
from benchmarks.simulated.forecast_learner import (
    EVERY_S,
    QUANTILES,
    DayTable,
    learned_ratios,
    tables,
)
from simulator.autoscalers.oracle import clairvoyant_schedule, required_replicas_by_second
from simulator.experiments import load_lateness_curve
from simulator.start_time import StartTime
from sojourn.output import print_json, print_table

FloatArray = NDArray[np.float64]
LATE_SHARE = 0.01
WINDOW_S = 60
#: Where days are, by their number: the file's index in the trace, and the day in the file. Days 2
#: and 8 judge autoscalers and are left alone.
DAYS = {1: (0, 0), 3: (1, 0), 4: (1, 1), 5: (1, 2), 6: (1, 3), 7: (1, 4), 9: (1, 6)}
HEADROOMS = (0.9, 0.95, 1.0, 1.05, 1.1)
RISKS = (0.04, 0.025, 0.015, 0.01, 0.005)
POINTS = (LAST, LINEAR, *PEAKS[:2])
SHARES = (None, 0.4, 0.2, 0.1, 0.05)
MARGINS = (1.0, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5, 2.0, 3.0)


@dataclass(frozen=True)
class Point:
    """Share of the minutes held, and cost, of one setting of a rule.

    Attributes
    ----------
    held : float
        Share of the minutes that comply.
    cost : float
        Replica-seconds over the oracle's.
    """

    held: float
    cost: float


class ReplayedDay:
    """A day on which rules are judged.

    Parameters
    ----------
    counts : ndarray of float, shape (seconds,)
        Requests of each second.
    alone_per_s, in_fleet_per_s : float
        What a replica serves within the SLA, by itself and in a fleet.
    start_time : StartTime
    failed_starts : float
        Share of the starts that fail, at their end; another begins at once.
    """

    def __init__(
        self,
        counts: FloatArray,
        alone_per_s: float,
        in_fleet_per_s: float,
        start_time: StartTime,
        failed_starts: float,
    ) -> None:
        self.counts = counts
        self._alone_per_s, self._in_fleet_per_s = alone_per_s, in_fleet_per_s
        self._start_time, self._failed_starts = start_time, failed_starts
        need = required_replicas_by_second(counts, alone_per_s)
        self.oracle = clairvoyant_schedule(need, round(start_time.median_s))
        self._offered = counts.reshape(-1, EVERY_S).mean(axis=1)

    def judge(self, demand: FloatArray, seed: int = 1) -> Point:
        """Order replicas for a demand, and return the outcome.

        Parameters
        ----------
        demand : ndarray of float, shape (seconds / EVERY_S,)
            What to provide for after each ten seconds, in requests per second.
        seed : int
            Of the start times.
        """
        ordered, ready = self.fleet(demand, seed)
        late = np.maximum(0.0, self.counts - self._in_fleet_per_s * ready)
        late_by_minute, by_minute = (
            series.reshape(-1, WINDOW_S).sum(axis=1) for series in (late, self.counts)
        )
        held = np.mean(late_by_minute <= (LATE_SHARE + 1e-9) * by_minute)
        return Point(float(held), float(ordered.sum() / self.oracle.sum()))

    def fleet(self, demand: FloatArray, seed: int) -> tuple[FloatArray, FloatArray]:
        """Return the replicas that are ordered, and those that serve, in each second."""
        random = np.random.default_rng(seed)
        hold_s = measured_hold_s(self._start_time.median_s, EVERY_S)
        guard, seconds = ScaleInGuard(), self.counts.size
        replicas = int(self.oracle[0])
        ordered, changes = np.full(seconds, float(replicas)), np.zeros(seconds + 1)
        changes[0] = replicas
        starting: list[float] = []  # when each will serve, in the order of their orders
        for step, level in enumerate(demand.tolist()):
            now_s = (step + 1) * EVERY_S
            guard.observe(now_s, level, hold_s)
            cautious = guard.cautious_demand_per_s(level, float(self._offered[step]), EVERY_S)
            required, kept = (
                max(1, math.ceil(rate / self._alone_per_s - 1e-9)) for rate in (level, cautious)
            )
            starting = [time_s for time_s in starting if time_s > now_s]
            wanted = required if required > replicas else min(replicas, kept)
            for _ in range(wanted - replicas):
                starting.append(now_s + self._draw_start_s(random))
                changes[min(seconds, math.ceil(starting[-1]))] += 1
            for _ in range(replicas - wanted):
                # The newest start is given up first.
                gone_s = math.ceil(starting.pop()) if starting else min(seconds, now_s)
                changes[min(seconds, gone_s)] -= 1
            replicas = wanted
            ordered[now_s : now_s + EVERY_S] = replicas
        return ordered, np.cumsum(changes[:-1])

    def _draw_start_s(self, random: np.random.Generator) -> float:
        start_s = self._start_time.draw_s(random)
        while random.random() < self._failed_starts:
            start_s += self._start_time.draw_s(random)
        return start_s


def cost_at(points: Sequence[Point], held: float = 0.99) -> float:
    """Return the cost at which a curve holds a share of the minutes; NaN if it never does.

    Only points that no other one beats count. Between two of them a rule is mixed in time, so the
    curve is straight there.
    """
    best: Point | None = None
    for point in sorted(points, key=lambda point: (point.cost, -point.held)):
        if best is not None and point.held <= best.held:
            continue
        if point.held >= held:
            if best is None:
                return point.cost
            share = (held - best.held) / (point.held - best.held)
            return best.cost + share * (point.cost - best.cost)
        best = point
    return math.nan


def mean_points(curves: Sequence[Sequence[Point]]) -> list[Point]:
    """Return the means over the days of each setting's points."""
    return [
        Point(
            float(np.mean([point.held for point in points])),
            float(np.mean([point.cost for point in points])),
        )
        for points in zip(*curves, strict=True)
    ]


def auto_demands(counts: FloatArray, horizon_s: float, risk: float) -> FloatArray:
    """Return what the autoscaler's forecaster asks for after each ten seconds."""
    forecaster = DemandForecaster("auto", LATE_SHARE)
    demands = []
    for end_s in range(EVERY_S, counts.size + 1, EVERY_S):
        forecaster.observe(float(end_s), counts[end_s - EVERY_S : end_s])
        forecast = forecaster.forecast(float(end_s), horizon_s, risk)
        assert forecast is not None
        demands.append(forecast.demand_per_s)
    return np.array(demands)


def pair_demands(
    counts: FloatArray, horizon_s: int
) -> dict[tuple[str, float | None, float], FloatArray]:
    """Return what each pair of a margin and a recurrence asks for after each ten seconds."""
    history, calendar, ahead = LoadHistory(LATE_SHARE), JumpCalendar(), horizon_s // EVERY_S
    points: list[list[float]] = []
    floors: list[list[float]] = []
    for end_s in range(EVERY_S, counts.size + 1, EVERY_S):
        history.observe(float(end_s), counts[end_s - EVERY_S : end_s])
        calendar.advance(history)
        blocks, least = history.blocks(), min_forecast_per_s(history.rates.values)
        points.append([max(least, float(one.values(*blocks, ahead)[-1])) for one in POINTS])
        now = history.required_rate_per_s
        floors.append(
            [
                now
                if share is None
                else max(now, calendar.expected_peak(history, Recurrence(share), ahead))
                for share in SHARES
            ]
        )
    by_point, by_share = np.array(points).T, np.array(floors).T
    return {
        (point.name, share, margin): np.maximum(margin * forecast, floor)
        for point, forecast in zip(POINTS, by_point, strict=True)
        for share, floor in zip(SHARES, by_share, strict=True)
        for margin in MARGINS
    }


def limits(
    days: Mapping[int, ReplayedDay], horizon_s: int, quick: bool
) -> dict[str, dict[str, float]]:
    """Return the cost at 99% of the minutes of each rule, by day and of one setting for all.

    Parameters
    ----------
    days : mapping of int to ReplayedDay
        By their numbers; they follow each other.
    horizon_s : int
    quick : bool
        Fewer risks and draws of start times.
    """
    joined = np.concatenate([day.counts for day in days.values()])
    seeds = (1,) if quick else (1, 2)

    def curves(demands: Sequence[FloatArray]) -> list[list[Point]]:
        """Judge settings, each of which has a demand for all days joined: a curve for each day."""
        parts = [np.split(demand, len(days)) for demand in demands]
        return [
            [mean_points([[day.judge(part[index], seed)] for seed in seeds])[0] for part in parts]
            for index, day in enumerate(days.values())
        ]

    found: dict[str, dict[str, float]] = {}

    def note(rule: str, demands: Sequence[FloatArray]) -> None:
        by_day = curves(demands)
        found[rule] = {f"day {day}": cost_at(one) for day, one in zip(days, by_day, strict=True)}
        found[rule]["one setting"] = cost_at(mean_points(by_day))

    day_tables = tables([day.counts for day in days.values()], horizon_s, LATE_SHARE)
    peaks = np.concatenate([table.peak for table in day_tables])
    note("perfect", [headroom * peaks for headroom in HEADROOMS])
    risks = RISKS[1:4] if quick else RISKS
    note("auto", [auto_demands(joined, horizon_s, risk) for risk in risks])
    note("a pair", list(pair_demands(joined, horizon_s).values()))
    for rule, same_day in (("learned", False), ("learned, same day", True)):
        if same_day or len(days) > 1:
            note(rule, learned_demands(day_tables, same_day))
    return found


def learned_demands(day_tables: Sequence[DayTable], same_day: bool) -> list[FloatArray]:
    """Return the demands by each quantile of the learned forecaster, on all days joined."""
    ratios = []
    for index, table in enumerate(day_tables):
        others = [other for other in day_tables if other is not table]
        ratios.append(learned_ratios([table] if same_day else others, day_tables[index]))
    scale = np.concatenate([table.scale for table in day_tables])
    required = np.concatenate([table.required for table in day_tables])
    every = np.concatenate(ratios)
    return [np.maximum(required, scale * every[:, i]) for i in range(len(QUANTILES))]


@click.command()
@click.option(
    "--traces",
    "folder",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the traces of `benchmarks.simulated.autoscaler`.",
)
@click.option("--days", default="3,4,5,6,7,9", show_default=True, help="Days of Twitter, joined.")
@click.option("--start-time-s", type=click.IntRange(min=10), default=60, show_default=True)
@quick_option("Three risks of `auto`, and one draw of the start times.")
@json_option
def main(folder: Path, days: str, start_time_s: int, quick: bool, as_json: bool) -> None:
    """Measure how cheap a forecast could be that holds 99% of the minutes."""
    chosen = [int(day) for day in days.split(",")]
    if unknown := set(chosen) - set(DAYS):
        raise click.UsageError(f"--days: must be of {', '.join(map(str, DAYS))}, not {unknown}")
    found = limits(load_days(folder, chosen, start_time_s), start_time_s, quick)
    if as_json:
        print_json(found)
        return
    columns = list(next(iter(found.values())))
    print_table(
        ["rule", *columns],
        [(rule, *(f"{costs[column]:.3f}" for column in columns)) for rule, costs in found.items()],
        f"cost over the oracle's at 99% of the minutes, {start_time_s} s to start",
    )


def load_days(folder: Path, numbers: Sequence[int], start_time_s: int) -> dict[int, ReplayedDay]:
    """Read days of Twitter, superposed and scaled as in the comparison of autoscalers."""
    profile, objective = cases.service(GOOGLENET_P4)
    (twitter,) = (trace for trace in cases.TRACES if trace.name == "twitter")
    files = (twitter.tune_on.file, twitter.judge_on[1].file)
    parts = tuple(
        cases.Part(files[DAYS[day][0]], DAYS[day][1] * cases.DAY_S, cases.DAY_S, f"day {day}")
        for day in numbers
    )
    case = cases.Case(replace(twitter, judge_on=parts), True, start_time_s, 0)
    tuned, *loads = case.loads(profile, objective, folder)
    scenario = tuned.scenario
    alone_per_s = load_lateness_curve(scenario).sla_rate_per_s
    return {
        day: ReplayedDay(
            load.scenario.counts.astype(np.float64),
            alone_per_s,
            scenario.replica_profile.capacity_per_s,
            scenario.start_time,
            cases.FAILED_STARTS,
        )
        for day, load in zip(numbers, loads, strict=True)
    }


if __name__ == "__main__":
    main()
