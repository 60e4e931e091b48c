"""`sojourn solve`: compute the optimal batching policy of a profile at an arrival rate."""

import time
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import click

from policy.baseline_policies import FORMS, reference_policy
from policy.batching_policy import BatchingPolicy
from policy.errors import InvalidInputError
from policy.objective import Objective, ServiceLevelObjective, Weights
from policy.optimization import solve
from policy.profile import Profile
from policy.service_model import BatchingSettings, service_model
from policy.solvers.reference.methods import solve_within
from policy.solvers.solution import Solution
from policy.tables.file import TableFile
from policy.tables.solving import solve_table
from policy.try_delays import RETRIES, TryDelays
from sojourn import option_types
from sojourn.output import existing_file, json_option, print_json, print_table, say

_PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)


@click.command(name="solve")
@click.option("--profile", "profile_file", type=existing_file, required=True, help="Profile file.")
@click.option(
    "--arrival-rate",
    type=option_types.arrival_rate,
    required=True,
    help="Poisson arrivals, requests per second.",
)
@click.option(
    "--latency-weight",
    type=float,
    default=1.0,
    show_default=True,
    help="Per ms of mean response time.",
)
@click.option(
    "--energy-weight", type=float, default=0.0, show_default=True, help="Per W of mean power."
)
@option_types.sla_options("Minimize power under this SLA instead")
@click.option(
    "--method",
    type=click.Choice(["exact", "rvi", "pi"]),
    default="exact",
    show_default=True,
    help="For weights. exact: queues of any length; rvi, pi: the SMDP paper's truncated queue, by "
    "relative value iteration or policy iteration.",
)
@click.option(
    "--overflow-cost",
    type=option_types.from_0,
    help="Of rvi and pi: extra cost per ms beyond the longest queue.  [default: 100]",
)
@click.option(
    "--max-queue",
    type=click.IntRange(min=1),
    help="Of rvi and pi: the longest queue.  [default: the first that suffices]",
)
@click.option("--batching", help=f"Evaluate a named policy instead: {', '.join(FORMS)}.")
@click.option(
    "--plot",
    type=option_types.new_file,
    help="Plot the policy to this PNG file.",
)
@click.option(
    "--export",
    type=option_types.new_file,
    help="Write the policies of all arrival rates to this file, for `policy: table` of a config; "
    "with --sla, those of a service with that SLA.",
)
@json_option
def command(
    profile_file: Path,
    arrival_rate: float,
    latency_weight: float,
    energy_weight: float,
    sla: ServiceLevelObjective | None,
    response_time_ms: float | None,
    percentile: float | None,
    method: Literal["exact", "rvi", "pi"],
    overflow_cost: float | None,
    max_queue: int | None,
    batching: str | None,
    plot: Path | None,
    export: Path | None,
    as_json: bool,
) -> None:
    """Compute the optimal batching policy of a profile at an arrival rate.

    It minimizes latency weight x mean response time + energy weight x mean power or, with
    --sla, the power under that SLA. The percentiles of a control limit are exact;
    those of other policies, and where batch times vary, come from a sample of arrivals.
    """
    profile = Profile.load(profile_file)
    weights = Weights(latency_weight, energy_weight)
    objective = option_types.chosen_sla(sla, response_time_ms, percentile)
    if batching is not None and objective:
        raise InvalidInputError(
            "--batching: fixes the whole policy; omit --sla and --response-time-ms"
        )
    if batching is not None and export:
        raise InvalidInputError("--export: writes what is solved; omit --batching")
    if method == "exact" and (overflow_cost is not None or max_queue):
        raise InvalidInputError("--overflow-cost, --max-queue: need --method rvi or pi")
    if method != "exact" and (objective or batching is not None or export):
        raise InvalidInputError(
            f"--method {method}: solves one rate for weights; omit --sla, --batching and --export"
        )
    if method != "exact" and profile.latency_quantiles is not None:
        raise InvalidInputError(
            f"--method {method}: needs fixed batch times; omit latency_quantiles of the profile"
        )
    profile.energy_mj_for_weight(energy_weight)
    profile.arrivals_per_ms(arrival_rate)
    begin = time.perf_counter()
    truncated = None
    if method != "exact":
        device = replace(profile.serial(), event_loop=None)
        truncated = solve_within(
            device,
            arrival_rate,
            weights,
            method,
            100 if overflow_cost is None else overflow_cost,
            max_queue,
        )
        assert truncated.policy is not None
        solution = Solution(profile.serial(), arrival_rate, weights, truncated.policy)
    elif batching is None:
        solution = solve(profile, arrival_rate, objective or weights)
    else:
        solution = Solution(profile, arrival_rate, weights, reference_policy(batching, profile))
    solve_ms = 1e3 * (time.perf_counter() - begin)
    result = {**_describe(solution, weights), "solve_ms": solve_ms}
    if truncated is not None:
        result["truncated"] = {
            "policy": solution.policy.to_dict(),
            "max_queue_length": truncated.smdp.max_queue_length,
            "rounds": truncated.rounds,
            "overflow_cost_per_ms": truncated.overflow_cost_per_ms,
            "average_cost": truncated.average_cost,
        }
    if export is not None:
        _export(export, profile, objective, weights)
    if plot is not None:
        _plot(plot, solution)
    if as_json:
        print_json(result)
    else:
        _print(solution, result)


def _describe(solution: Solution, weights: Weights) -> dict[str, Any]:
    policy, evaluation = solution.policy, solution.evaluation
    result = {
        "control_limit": policy.control_limit,
        "actions": list(policy.actions),
        "max_wait_ms": policy.max_wait_ms,
        "average_cost": solution.weigh(weights),
        "mean_response_ms": solution.mean_response_ms,
        "mean_power_w": solution.mean_power_w,
        "response_percentiles_ms": {
            f"{p:g}": evaluation.response_percentile_ms(p) for p in _PERCENTILES
        },
        "response_percentile_errors_ms": {
            f"{p:g}": evaluation.percentile_standard_error_ms(p) for p in _PERCENTILES
        },
        "mean_batch_size": evaluation.mean_batch_size,
        "traffic_intensity": solution.arrival_rate_per_s / solution.profile.capacity_per_s,
    }
    if isinstance(solution.objective, ServiceLevelObjective):
        result["meets_sla"] = solution.meets_sla
        result["service_level"] = solution.service_level
    return result


def _export(
    path: Path, profile: Profile, sla: ServiceLevelObjective | None, weights: Weights
) -> None:
    """Write the table of a service with the SLA, or of the whole profile for weights."""
    objective: Objective = weights
    if sla is not None:
        settings = BatchingSettings(objective="sla")
        service = service_model(profile, sla, TryDelays(retries=RETRIES), settings)
        profile, objective = service.profile, service.objective
    TableFile(profile, objective, solve_table(profile, objective)).save(path)
    say(f"Policies of all arrival rates written to {path}.")


def _plot(path: Path, solution: Solution) -> None:
    from sojourn.reporting.policy_plot import save_report  # importing matplotlib takes a second

    objective = solution.objective
    try:
        save_report(
            path,
            solution.profile,
            solution.arrival_rate_per_s,
            solution.policy,
            objective if isinstance(objective, ServiceLevelObjective) else None,
        )
    except ValueError as error:
        raise InvalidInputError(f"--plot {path}: {error}") from error
    say(f"Plot written to {path}.")


def _print(solution: Solution, result: dict[str, Any]) -> None:
    profile, policy, objective = solution.profile, solution.policy, solution.objective
    rows: list[tuple[str, object]] = [
        ("load (share of capacity)", f"{result['traffic_intensity']:.1%}"),
        ("control limit", result["control_limit"]),
        ("max wait (ms)", "none" if policy.max_wait_ms is None else policy.max_wait_ms),
        ("mean batch size", result["mean_batch_size"]),
        ("mean response (ms)", result["mean_response_ms"]),
        *(
            (f"p{percentile} response (ms)", f"{ms:.4g} ± {error_ms:.2g}" if error_ms else ms)
            for (percentile, ms), error_ms in zip(
                result["response_percentiles_ms"].items(),
                result["response_percentile_errors_ms"].values(),
                strict=True,
            )
        ),
        ("mean power (W)", "unknown" if profile.energy_mj is None else result["mean_power_w"]),
        ("average cost", result["average_cost"]),
        ("solved in (ms)", result["solve_ms"]),
    ]
    if "truncated" in result:
        found = result["truncated"]
        rows += [
            ("longest queue", found["max_queue_length"]),
            ("sweeps or rounds", found["rounds"]),
            ("average cost, truncated", found["average_cost"]),
            ("of it beyond the longest queue", found["overflow_cost_per_ms"]),
        ]
    if "service_level" in result:
        rows.insert(-1, ("requests in time", f"{result['service_level']:.3%}"))
    print_table(("", "value"), rows, title=f"{profile.model} on {profile.device}")
    print_table(("queue length", "a free device"), _action_rows(policy))
    if isinstance(objective, ServiceLevelObjective) and not solution.meets_sla:
        say(
            f"No policy keeps {objective.percentile:g}% within {objective.response_time_ms:g} ms "
            f"at this rate on one device; this policy comes closest."
        )


def _action_rows(policy: BatchingPolicy) -> list[tuple[str, str]]:
    """Describe the policy by ranges of the queue length."""

    def in_words(length: int) -> str:
        size = policy.actions[length]
        return "waits" if size == 0 else "starts all" if size == length else f"starts {size}"

    last = len(policy.actions) - 1
    rows = []
    for words, group in groupby(range(last), key=in_words):
        lengths = list(group)
        ends = f"{lengths[0]} to {lengths[-1]}" if len(lengths) > 1 else str(lengths[0])
        rows.append((ends, words))
    rows.append((f"{last} or more", f"starts {policy.actions[last]}"))
    return rows
