"""Time the policy solvers side by side, on the same problems, in one run.

    python -m benchmarks.paper.policy [--quick] [--json]

Four solvers reach the same policy: the exact solver over queues of any length; policy iteration
and the paper's relative value iteration on its truncated queue; and QuantEcon's `DiscreteDP`, a
generic solver of Markov decision processes, on the paper's discretized chain (with a discount
factor so close to 1 that its policy is the average-cost one). Times are medians: "total" from the
profile to the policy, "solving" with all matrices already built. "Error" compares the average cost
of a policy on the truncated queue, overflow cost included, with the exact one. The truncated
solvers are told how long a queue suffices; the paper needs several more solutions to find out.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

import click
import numpy as np
from quantecon.markov import DiscreteDP

from benchmarks.arguments import json_option, quick_option
from benchmarks.inputs import GOOGLENET_P4, googlenet_p4
from policy.objective import ServiceLevelObjective, Weights
from policy.profile import Profile
from policy.solvers import exact
from policy.solvers.reference import policy_iteration, relative_value_iteration
from policy.solvers.reference.truncated import TruncatedSmdp
from policy.table import PolicyTable
from policy.table_solving import solve_table
from sojourn.output import print_json, print_table

T = TypeVar("T")
_DISCOUNT = 1 - 1e-9


@dataclass(frozen=True)
class Row:
    """One solver on one problem; `times_exact` is its total time over the exact solver's."""

    problem: str
    solver: str
    total_ms: float
    times_exact: float
    solving_ms: float
    rounds: int
    average_cost: float
    relative_error: float


def timed(run: Callable[[], T], repeats: int) -> tuple[float, T]:
    """Return the median milliseconds of `repeats` runs, after one to warm up, and the result."""
    result = run() if repeats > 1 else None
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        result = run()
        times.append(1e3 * (time.perf_counter() - begin))
    assert result is not None
    return statistics.median(times), result


def discrete_dp(smdp: TruncatedSmdp) -> DiscreteDP:
    """Build the discretized chain of arXiv 2301.12865, (17)-(19), as state-action pairs."""
    states, actions = np.nonzero(np.isfinite(smdp.cost))
    share = 0.99 * relative_value_iteration.largest_step_ms(smdp) / smdp.period_ms[actions]
    transitions = np.empty((states.size, smdp.states))
    for action in range(smdp.cost.shape[1]):
        pairs = np.flatnonzero(actions == action)
        policy = np.zeros(smdp.states, dtype=np.intp)
        policy[states[pairs]] = action
        transitions[pairs] = smdp.transition_matrix(policy)[states[pairs]]
    transitions *= share[:, np.newaxis]
    transitions[np.arange(states.size), states] += 1 - share
    gain = -smdp.cost[states, actions] / smdp.period_ms[actions]
    return DiscreteDP(gain, transitions, _DISCOUNT, states, actions)


def compare(
    max_batch_size: int, load: float, weights: Weights, longest: int, overflow_cost: float
) -> list[Row]:
    """Time all solvers on one problem; the generic one only where its matrix fits into memory."""
    profile = googlenet_p4(max_batch_size)
    rate = load * profile.capacity_per_s
    name = f"B={max_batch_size}, load {load:g}, energy weight {weights.energy_weight:g}"
    small = max_batch_size <= 32
    exact_ms, best = timed(lambda: exact.solve(profile, rate, weights), 50 if small else 9)
    rows = [Row(name, "exact", exact_ms, 1.0, exact_ms, best.rounds, best.average_cost, 0.0)]

    def make() -> TruncatedSmdp:
        return TruncatedSmdp(profile, rate, weights, longest, overflow_cost)

    making_ms, smdp = timed(make, 9)

    def add(solver: str, made_ms: float, solving_ms: float, rounds: int, actions: Any) -> None:
        cost = policy_iteration.evaluate(smdp, np.asarray(actions))[0]
        total_ms = made_ms + solving_ms
        error = cost / best.average_cost - 1
        rows.append(
            Row(name, solver, total_ms, total_ms / exact_ms, solving_ms, rounds, cost, error)
        )

    by_policy_ms, by_policy = timed(lambda: policy_iteration.solve(smdp), 9 if small else 3)
    add("policy iteration", making_ms, by_policy_ms, by_policy.rounds, by_policy.actions)
    by_value_ms, by_value = timed(lambda: relative_value_iteration.solve(smdp), 5 if small else 1)
    add("RVI (the paper)", making_ms, by_value_ms, by_value.rounds, by_value.actions)
    if small:
        generic_making_ms, process = timed(lambda: discrete_dp(smdp), 5)
        generic_ms, generic = timed(lambda: process.solve("policy_iteration"), 9)
        made_ms = making_ms + generic_making_ms
        add("QuantEcon DiscreteDP", made_ms, generic_ms, int(generic.num_iter), generic.sigma)
    return rows


def sla_tables(profile: Profile, limits_ms: tuple[float, ...], repeats: int) -> dict[str, float]:
    """Return the milliseconds to solve a table of 64 rates for a 99th percentile, by its SLA."""
    objectives = [ServiceLevelObjective(limit_ms, 99) for limit_ms in limits_ms]
    return {
        f"{objective.response_time_ms:g} ms": timed(
            partial(solve_table, profile, objective), repeats
        )[0]
        for objective in objectives
    }


def table_and_look_up(profile: Profile) -> tuple[float, float]:
    """Return the milliseconds to solve a table for weights, and the microseconds of a look-up."""
    table_ms, table = timed(lambda: solve_table(profile, Weights(1, 1)), 5)
    assert isinstance(table, PolicyTable)
    rates = np.random.default_rng(1).uniform(0, profile.capacity_per_s, 20_000).tolist()
    look_ups_ms, _ = timed(lambda: [table.lookup(rate) for rate in rates], 5)
    return table_ms, 1e3 * look_ups_ms / len(rates)


@click.command()
@quick_option("Leave out batches of up to 256, and all SLAs but one.")
@json_option
def main(quick: bool, as_json: bool) -> None:
    """Time the policy solvers side by side, on the same problems."""
    rows = [
        *compare(32, 0.9, Weights(1, 1), 70, 1e2),
        *compare(32, 0.7, Weights(1, 1), 70, 1e4),
        *compare(32, 0.3, Weights(1, 1), 60, 1e4),
        *([] if quick else compare(256, 0.9, Weights(1, 1), 420, 1e4)),
    ]
    table_ms, look_up_us = table_and_look_up(GOOGLENET_P4)
    limits_ms, repeats = ((100.0,), 1) if quick else ((5.0, 10.0, 20.0, 100.0), 5)
    sla_tables_ms = sla_tables(GOOGLENET_P4, limits_ms, repeats)
    if as_json:
        print_json(
            {
                "solvers": [asdict(row) for row in rows],
                "table_for_weights_ms": table_ms,
                "sla_tables_of_64_rates_ms": sla_tables_ms,
                "look_up_us": look_up_us,
            }
        )
        return
    for problem, group in groupby(rows, key=lambda row: row.problem):
        print_table(
            ("solver", "total ms", "x exact", "solving ms", "rounds", "average cost", "error"),
            [
                (
                    row.solver,
                    row.total_ms,
                    f"{row.times_exact:.3g}",
                    row.solving_ms,
                    row.rounds,
                    f"{row.average_cost:.6g}",
                    f"{row.relative_error:.0e}",
                )
                for row in group
            ],
            title=problem,
        )
    print(f"A table for weights, B=32: {table_ms:.3g} ms; a look-up: {look_up_us:.2g} us")
    for limit, sla_table_ms in sla_tables_ms.items():
        print(f"A table of 64 rates, B=32, 99% within {limit}: {sla_table_ms:.3g} ms")


if __name__ == "__main__":
    main()
