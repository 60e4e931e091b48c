"""`sojourn plan`: how many replicas an arrival rate needs under an SLA, and how they batch."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from autoscaler.batching_estimator import BatchingEstimator, BatchingPrediction
from autoscaler.sizing import (
    FullBatchEstimator,
    Prediction,
    TryDelays,
    in_words,
    least_replicas,
)
from policy.batching_policy import BatchingPolicy
from policy.constrained import solve_constrained
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from sojourn.errors import InvalidInputError
from sojourn.output import existing_file, json_option, print_json, print_table


@dataclass(frozen=True)
class _Row:
    """A number of replicas, what they do, and how they batch."""

    prediction: Prediction
    policy: BatchingPolicy | None
    mean_power_w: float | None


class _Planner:
    """Answers with either estimator, and with the batching policy that goes with the answer."""

    def __init__(
        self, profile: Profile, objective: ServiceLevelObjective, delays: TryDelays, by: str
    ) -> None:
        self._profile, self._objective, self._delays = profile, objective, delays
        size = profile.max_batch_size
        full_batch_ms = float(profile.latency_ms[-1])
        self._estimator: FullBatchEstimator | BatchingEstimator = (
            FullBatchEstimator(1e3 * size / full_batch_ms, full_batch_ms, delays)
            if by == "rand"
            else BatchingEstimator(profile, delays)
        )

    def least(self, arrival_rate_per_s: float, max_replicas: int) -> _Row:
        found = least_replicas(
            self._estimator, arrival_rate_per_s, self._objective, 1, max_replicas
        )
        return self._row(found, arrival_rate_per_s)

    def at(self, replicas: int, arrival_rate_per_s: float) -> _Row:
        found = self._estimator.predict(arrival_rate_per_s, replicas, self._objective)
        return self._row(found, arrival_rate_per_s)

    def _row(self, prediction: Prediction, arrival_rate_per_s: float) -> _Row:
        if isinstance(prediction, BatchingPrediction):
            return _Row(prediction, prediction.policy, prediction.mean_power_w)
        share_per_s = arrival_rate_per_s / prediction.replicas
        if share_per_s >= self._estimator.capacity_per_s:
            return _Row(prediction, None, None)
        solution = solve_constrained(
            self._profile,
            share_per_s,
            response_time_ms=self._objective.response_time_ms - self._delays.request_delay_ms,
            percentile=self._objective.percentile,
        )
        power_w = solution.mean_power_w
        return _Row(
            prediction,
            solution.policy,
            None if power_w is None else prediction.replicas * power_w,
        )


_delay = click.FloatRange(min=0)


@click.command("plan")
@click.option("--profile", "profile_file", type=existing_file, required=True, help="Profile file.")
@click.option(
    "--arrival-rate",
    type=click.FloatRange(min=0, min_open=True),
    required=True,
    help="Requests per second, of all replicas together.",
)
@click.option(
    "--response-time-ms",
    type=click.FloatRange(min=0, min_open=True),
    required=True,
    help="The SLA's response time.",
)
@click.option(
    "--percentile",
    type=click.FloatRange(min=0, max=100, min_open=True, max_open=True),
    default=99.0,
    show_default=True,
    help="Percent of the requests to be answered within it.",
)
@click.option(
    "--estimator",
    type=click.Choice(["batch", "rand"]),
    default="batch",
    show_default=True,
    help="batch: RAND over replicas that batch by their policy; rand: over replicas that do one "
    "full batch at a time (Theorem 2 of Swayam).",
)
@click.option(
    "--request-delay-ms",
    type=_delay,
    default=TryDelays.request_delay_ms,
    show_default=True,
    help="From the load balancer to a replica.",
)
@click.option(
    "--reply-delay-ms",
    type=_delay,
    default=TryDelays.reply_delay_ms,
    show_default=True,
    help="From a busy replica back to the load balancer.",
)
@click.option(
    "--retry-delay-ms",
    type=_delay,
    default=TryDelays.retry_delay_ms,
    show_default=True,
    help="What the load balancer waits before it tries another replica.",
)
@click.option(
    "--retries",
    type=click.IntRange(min=0),
    help="Retries before the load balancer gives up.  [default: as many as are in time]",
)
@click.option(
    "--max-replicas",
    type=click.IntRange(min=1),
    default=10_000,
    show_default=True,
    help="The most to consider.",
)
@json_option
def command(
    profile_file: Path,
    arrival_rate: float,
    response_time_ms: float,
    percentile: float,
    estimator: str,
    request_delay_ms: float,
    reply_delay_ms: float,
    retry_delay_ms: float,
    retries: int | None,
    max_replicas: int,
    as_json: bool,
) -> None:
    """Say how many replicas an arrival rate needs under an SLA, and how they batch."""
    for name, value in (
        ("arrival-rate", arrival_rate),
        ("response-time-ms", response_time_ms),
        ("percentile", percentile),
        ("request-delay-ms", request_delay_ms),
        ("reply-delay-ms", reply_delay_ms),
        ("retry-delay-ms", retry_delay_ms),
    ):
        if not math.isfinite(value):
            raise InvalidInputError(f"--{name}: must be a finite number, not {value}")
    objective = ServiceLevelObjective(response_time_ms, percentile)
    delays = TryDelays(request_delay_ms, reply_delay_ms, retry_delay_ms, retries)
    planner = _Planner(Profile.load(profile_file), objective, delays, estimator)
    chosen = planner.least(arrival_rate, max_replicas)
    replicas = chosen.prediction.replicas
    rows = [
        chosen if number == replicas else planner.at(number, arrival_rate)
        for number in (replicas - 1, replicas, replicas + 1)
        if number >= 1
    ]
    if as_json:
        print_json(
            {
                **_content(chosen, objective),
                "alternatives": [_content(row, objective) for row in rows],
                "estimator": estimator,
            }
        )
        return
    print_table(
        ("replicas", "in time", "percentile ms", "control limit", "max wait ms", "power W"),
        [_cells(row, chosen) for row in rows],
        title=f"{arrival_rate:g} requests/s, {in_words(objective)}: {replicas} replica"
        + ("s" if replicas > 1 else ""),
    )


def _content(row: _Row, objective: ServiceLevelObjective) -> dict[str, Any]:
    prediction, policy = row.prediction, row.policy
    reached = math.isfinite(prediction.percentile_ms)
    return {
        "replicas": prediction.replicas,
        "meets_sla": prediction.meets(objective),
        "predicted_percentile_ms": prediction.percentile_ms if reached else None,
        "predicted_service_level": prediction.service_level,
        "control_limit": None if policy is None else policy.control_limit,
        "actions": None if policy is None else policy.actions,
        "max_wait_ms": None if policy is None else policy.max_wait_ms,
        "mean_power_w": row.mean_power_w,
    }


def _cells(row: _Row, chosen: _Row) -> list[object]:
    prediction, policy = row.prediction, row.policy
    wait_ms = None if policy is None else policy.max_wait_ms
    return [
        f"{prediction.replicas}{' *' if row is chosen else ''}",
        f"{100 * prediction.service_level:.4g}%",
        prediction.percentile_ms if math.isfinite(prediction.percentile_ms) else "never",
        "-" if policy is None else policy.control_limit,
        "-" if wait_ms is None else wait_ms,
        "-" if row.mean_power_w is None else row.mean_power_w,
    ]
