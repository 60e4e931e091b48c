"""Where the replica-seconds of Sojourn go, beyond those of the oracle.

    python -m benchmarks.simulated.cost_causes --traces DIR [--case TRACE SECONDS]... [--hours H]
        [--json]

Sojourn, with the settings that it ships with, is simulated on the superposed tuning days of
`benchmarks.simulated.autoscaler`. In each second, what it ordered is split into parts that add up:

- the *need* of a perfect forecast: the highest rate required in any minute until a median start
  from now, over the SLA rate of a replica, in fractions of replicas;
- what the forecast asked for beyond that, and what it fell short of it;
- the last replica, which is whole;
- what was kept although the forecast no longer asked for it: the hold, the margin for noise, and
  the first fleet of a new service.

Each is a share of the oracle's replica-seconds. Orders count from the second in which they are
made, so failed starts add nothing: another start takes their place in the same order.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from autoscaler.decision import Decision
from autoscaler.forecasting.load_history import RequiredRate
from benchmarks.arguments import json_option
from benchmarks.inputs import GOOGLENET_P4
from benchmarks.simulated.arena import cases
from simulator.arena import ORACLE_CHOICE, Load
from simulator.autoscalers.sojourn import SojournAutoscaler
from simulator.scaling import FleetView
from simulator.simulation import simulate
from sojourn.output import print_json, print_table

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Causes:
    """Replica-seconds by cause, each over the oracle's.

    Attributes
    ----------
    need, beyond, short, rounding, kept : float
        As in the module's docstring; `short` is at most 0.
    ordered : float
        Their sum.
    """

    need: float
    beyond: float
    short: float
    rounding: float
    kept: float

    @property
    def ordered(self) -> float:
        """All that was ordered."""
        return self.need + self.beyond + self.short + self.rounding + self.kept


class Recorder:
    """Runs Sojourn's autoscaler and keeps its decisions.

    Parameters
    ----------
    autoscaler : SojournAutoscaler

    Attributes
    ----------
    decisions : list of Decision
        One a second.
    """

    name = "sojourn"

    def __init__(self, autoscaler: SojournAutoscaler) -> None:
        self._autoscaler = autoscaler
        self.decisions: list[Decision] = []

    def replicas(self, view: FleetView) -> int:
        """Return how many replicas should be ordered."""
        replicas = self._autoscaler.replicas(view)
        assert self._autoscaler.decision is not None
        self.decisions.append(self._autoscaler.decision)
        return replicas


def highest_ahead(values: FloatArray, steps: int) -> FloatArray:
    """Return the maximum of each value and the `steps` after it; of fewer at the end."""
    padded = np.concatenate((values, np.full(steps, values[-1])))
    highest: FloatArray = sliding_window_view(padded, steps + 1).max(axis=1)
    return highest


def causes(
    decisions: Sequence[Decision],
    counts: FloatArray,
    late_share_allowed: float,
    start_time_s: int,
    oracle_s: float,
) -> Causes:
    """Split what was ordered into its causes.

    Seconds whose decision knows no demand count as needed.

    Parameters
    ----------
    decisions : sequence of Decision
        One a second.
    counts : ndarray of float, shape (seconds,)
        Requests of each second.
    late_share_allowed : float
        Fraction of a window's requests that may miss the SLA.
    start_time_s : int
        The median start.
    oracle_s : float
        The oracle's replica-seconds.
    """
    window = RequiredRate(late_share_allowed)
    ahead = highest_ahead(np.array([window.push(rate) for rate in counts.tolist()]), start_time_s)
    parts = np.zeros(5)
    for decision, highest_per_s in zip(decisions, ahead.tolist(), strict=True):
        demand_per_s, sla_rate_per_s = decision.demand_per_s, decision.sla_rate_per_s
        required = decision.required_replicas
        if demand_per_s is None or not sla_rate_per_s or required is None:
            parts[0] += decision.replicas
            continue
        need, demand = highest_per_s / sla_rate_per_s, demand_per_s / sla_rate_per_s
        parts += (
            need,
            max(0.0, demand - need),
            min(0.0, demand - need),
            required - demand,
            decision.replicas - required,
        )
    return Causes(*(parts / oracle_s).tolist())


def measure(load: Load) -> Causes:
    """Simulate Sojourn and the oracle on a load, and split the cost into its causes."""
    scenario = load.scenario
    recorder = Recorder(
        SojournAutoscaler(min_replicas=scenario.min_replicas, max_replicas=scenario.max_replicas)
    )
    simulate(scenario, recorder)
    return causes(
        recorder.decisions,
        scenario.counts,
        scenario.objective.late_share_allowed,
        round(load.start_time_s),
        load.measure(ORACLE_CHOICE).replica_seconds,
    )


@click.command()
@click.option(
    "--traces",
    "folder",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the traces of `benchmarks.simulated.autoscaler`.",
)
@click.option(
    "--case",
    "chosen",
    type=(click.Choice([trace.name for trace in cases.TRACES]), click.IntRange(min=1)),
    multiple=True,
    default=(("twitter", 60), ("twitter", 10), ("nasa", 60), ("azure conversation", 60)),
    show_default=True,
    help="A trace and its start time in s.",
)
@click.option("--hours", type=click.IntRange(min=1), default=24, show_default=True)
@json_option
def main(folder: Path, chosen: tuple[tuple[str, int], ...], hours: int, as_json: bool) -> None:
    """Measure where the replica-seconds of Sojourn go, beyond those of the oracle."""
    profile, objective = cases.service(GOOGLENET_P4)
    found: dict[str, Causes] = {}
    for name, start_time_s in chosen:
        (trace,) = (trace for trace in cases.TRACES if trace.name == name)
        tuned = cases.Trace(name, trace.tune_on.cut(hours), (), trace.peak)
        case = cases.Case(tuned, True, start_time_s, 0)
        (load,) = case.loads(profile, objective, folder)
        found[case.name] = measure(load)
    if as_json:
        print_json({name: {**asdict(one), "ordered": one.ordered} for name, one in found.items()})
        return
    print_table(
        ("case", "need", "beyond", "short", "rounding", "kept", "ordered"),
        [
            (name, *(f"{part:.3f}" for part in (*asdict(one).values(), one.ordered)))
            for name, one in found.items()
        ],
    )


if __name__ == "__main__":
    main()
