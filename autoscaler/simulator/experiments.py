"""Experiments: autoscalers on one scenario, or a fixed fleet and its prediction."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from autoscaler.history.traces import MAX_TRACE_S, Trace, counts_by_second
from autoscaler.simulator.arrivals import (
    WithinSecond,
    poisson_counts,
    scaled_counts,
    superposed_counts,
)
from autoscaler.simulator.autoscalers.fixed import FixedFleet
from autoscaler.simulator.autoscalers.oracle import Clairvoyant
from autoscaler.simulator.autoscalers.registry import AUTOSCALERS, ORACLE, Choice
from autoscaler.simulator.reporting.comparison import Comparison
from autoscaler.simulator.results import Run
from autoscaler.simulator.scenario import Scenario
from autoscaler.simulator.simulation import simulate
from autoscaler.sizing.estimators import least_replicas
from policy.errors import InfeasibleError, InvalidInputError


def compare(scenario: Scenario, choices: Sequence[Choice]) -> Comparison:
    """Run autoscalers and the oracle on the same arrivals, from the oracle's initial fleet on."""
    scenario = with_trace(scenario, scenario.counts, 1.0)
    oracle = Choice(ORACLE, AUTOSCALERS[ORACLE])
    runs: dict[str, Run] = {}
    everything = {choice.name: choice for choice in (*choices, oracle)}
    known = oracle.make(scenario)
    assert isinstance(known, Clairvoyant)
    first = min(max(known.initial_replicas, scenario.min_replicas), scenario.max_replicas)
    for choice in everything.values():
        done = simulate(replace(scenario, replicas=first), choice.make(scenario))
        runs[choice.name] = replace(done, name=choice.name)
    return Comparison(
        runs=tuple(runs[choice.name] for choice in choices),
        oracle=runs[ORACLE],
        labels={choice.name: choice.label for choice in everything.values()},
    )


def with_trace(
    scenario: Scenario, counts: ArrayLike, scale: float, superpose: bool = False
) -> Scenario:
    """Return the scenario with the counts of a trace, scaled once for all autoscalers.

    With `superpose`, Poisson counts are drawn from the smoothed rate, as of many services.
    """
    random = np.random.default_rng(scenario.seed)
    draw = superposed_counts if superpose else scaled_counts
    scaled = draw(counts, scale, random).astype(np.float64)
    return replace(scenario, counts=scaled)


def with_history(
    scenario: Scenario, trace: Trace, history: Trace, scale: float, superpose: bool = False
) -> Scenario:
    """Return the scenario with an earlier load from which Sojourn's autoscaler learns.

    The history is on the clock of `trace`, if it ends before that begins; else it is taken to end
    right then. Longer steps than a second cannot be superposed, and are only scaled.
    """
    end_s = history.end_s - trace.begin_s if history.end_s <= trace.begin_s else 0
    counts = scale * history.counts
    if history.step_s == 1:
        known = counts_by_second(history, "history")
        # A seed other than that of the run, or the same noise would occur twice.
        before = replace(scenario, seed=scenario.seed + 1)
        counts = with_trace(before, known, scale, superpose).counts
    past = Trace(counts, history.step_s, end_s - history.seconds, history.is_absolute)
    return replace(scenario, history=past)


def poisson_scenario(scenario: Scenario, arrival_rate_per_s: float, requests: int) -> Scenario:
    """Return the scenario with about this many Poisson arrivals, in at least one second."""
    seconds = max(1, round(requests / arrival_rate_per_s))
    if seconds > MAX_TRACE_S:
        raise InvalidInputError(
            f"requests: {requests} at {arrival_rate_per_s:g}/s take longer than a year"
        )
    random = np.random.default_rng(scenario.seed)
    counts = poisson_counts(arrival_rate_per_s, seconds, random).astype(np.float64)
    return replace(scenario, counts=counts, within_second=WithinSecond.UNIFORM)


def run_fixed(scenario: Scenario, replicas: int) -> Comparison:
    """Run a fixed fleet; the comparison holds that one run."""
    label = f"{replicas} replica" + ("s" if replicas > 1 else "")
    fixed = replace(scenario, replicas=replicas, min_replicas=replicas, max_replicas=replicas)
    return Comparison((simulate(fixed, FixedFleet(replicas)),), labels={FixedFleet.name: label})


def least_predicted(scenario: Scenario, arrival_rate_per_s: float) -> int | None:
    """Return the fewest replicas that meet the SLA by the model; None if no allowed number does."""
    estimator, sla = scenario.estimator, scenario.objective
    try:
        return least_replicas(estimator, arrival_rate_per_s, sla, scenario.max_replicas).replicas
    except InfeasibleError:
        return None
