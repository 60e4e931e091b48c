"""`sojourn plan`: compute how many replicas an arrival rate needs under an SLA."""

import itertools
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autoscaler.sizing.estimators import FullBatchEstimator
from autoscaler.sizing.planner import Plan, Planner, Prices
from autoscaler.sizing.service_estimator import ServiceEstimator, ServicePrediction
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.power_limit import under_power_limit
from policy.profile import Profile
from policy.service_model import ServiceModel, service_model
from policy.try_delays import RETRIES, TryDelays
from sojourn import option_types
from sojourn.output import existing_file, json_option, print_json, print_table

if TYPE_CHECKING:
    from deployments.config.user_config import UserConfig

_WAITS_LONGER = (
    "With more replicas, answers take longer here: each replica has less load, and waits longer to "
    "fill its batches, because that saves energy."
)
_DELAYS = {
    "request": "from the load balancer to a replica",
    "reply": "of a busy replica's refusal back to the load balancer",
    "retry": "before the load balancer tries another replica",
}
_STAGES = {"event_loop": "its event loop", "device": "its device"}


def _delay_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the parameters of RAND, which default to those of HAProxy on one machine."""
    retries = click.option(
        "--retries",
        type=click.IntRange(0, 10_000),
        default=RETRIES,
        show_default=True,
        help="Limit of the retries of a request.",
    )
    command = retries(command)
    for name, meaning in reversed(_DELAYS.items()):
        delay = click.option(
            f"--{name}-delay-ms",
            type=option_types.from_0,
            default=getattr(TryDelays, f"{name}_delay_ms"),
            show_default=True,
            help=f"Delay {meaning}.",
        )
        command = delay(command)
    return command


@click.command("plan")
@click.option("--profile", "profile_file", type=existing_file, help="Profile file.")
@click.option(
    "--config",
    type=existing_file,
    help="Config of a model: its profile, SLA, policy, limits and power limit.",
)
@click.option(
    "--arrival-rate",
    type=option_types.arrival_rate,
    required=True,
    help="Requests per second, over all replicas.",
)
@option_types.sla_options("The SLA")
@click.option(
    "--estimator",
    type=click.Choice(["batch", "rand"]),
    default="batch",
    show_default=True,
    help="batch: replicas that queue and batch by their policy, under random routing with "
    "retries; rand: replicas that run one full batch at a time (Theorem 2 of Swayam).",
)
@_delay_options
@click.option(
    "--max-replicas",
    type=click.IntRange(min=1),
    default=10_000,
    show_default=True,
    help="Maximum number of replicas to consider.",
)
@click.option(
    "--power-limit-w",
    type=option_types.above_0,
    help="Most power of all replicas in W, as in a config: it comes before the SLA.",
)
@click.option(
    "--energy-price",
    type=option_types.from_0,
    help="Price per kWh: minimize the cost of replicas and energy, with up to 8 extra replicas.",
)
@click.option(
    "--replica-price",
    type=option_types.from_0,
    default=0.0,
    show_default=True,
    help="Price per replica and hour, in the currency of --energy-price.",
)
@json_option
def command(
    profile_file: Path | None,
    config: Path | None,
    arrival_rate: float,
    sla: ServiceLevelObjective | None,
    response_time_ms: float | None,
    percentile: float | None,
    estimator: str,
    request_delay_ms: float,
    reply_delay_ms: float,
    retry_delay_ms: float,
    retries: int,
    max_replicas: int,
    power_limit_w: float | None,
    energy_price: float | None,
    replica_price: float,
    as_json: bool,
) -> None:
    """Compute how many replicas an arrival rate needs under an SLA, and how they batch."""
    given = option_types.chosen_sla(sla, response_time_ms, percentile)
    measured, user_config = _profile_and_config(profile_file, config)
    delays = TryDelays(request_delay_ms, reply_delay_ms, retry_delay_ms, retries)
    if user_config is None:
        objective, settings = option_types.required(given), None
    else:
        objective, settings = given or user_config.sla.objective, user_config.batching()
        power_limit_w = power_limit_w or user_config.power_limit_w
    if power_limit_w is not None and (energy_price is not None or estimator != "batch"):
        raise InvalidInputError("--power-limit-w: omit --energy-price and --estimator")
    service = service_model(measured, objective, delays, settings)
    profile = service.profile
    if energy_price is None and replica_price:
        raise InvalidInputError("--replica-price: needs --energy-price")
    if energy_price is not None and profile.energy_mj is None:
        raise InvalidInputError(
            "--energy-price: the profile has no energy; measure a profile with energy"
        )
    planner = Planner(profile, objective, _estimator(service, estimator))
    prices = None if energy_price is None else Prices(replica_price, energy_price)
    if prices is None:
        chosen = planner.least(arrival_rate, max_replicas)
    else:
        chosen = planner.cheapest(arrival_rate, max_replicas, prices)
    remark = None
    if power_limit_w is not None:
        needed = chosen.prediction.replicas
        fleet = under_power_limit(service, power_limit_w, arrival_rate, needed)
        objective = fleet.service.client_sla
        planner = Planner(profile, objective, ServiceEstimator(fleet.service))
        chosen, remark = planner.at(fleet.replicas, arrival_rate), fleet.in_words
    replicas = chosen.prediction.replicas
    bottleneck = None
    if isinstance(chosen.prediction, ServicePrediction) and profile.event_loop is not None:
        bottleneck = chosen.prediction.bottleneck
    theorem_error = planner.theorem_error(arrival_rate, replicas)
    rows = (
        [chosen]
        if remark
        else [
            chosen if number == replicas else planner.at(number, arrival_rate)
            for number in (replicas - 1, replicas, replicas + 1)
            if number >= 1
        ]
    )
    if as_json:
        print_json(
            {
                **chosen.describe(objective, prices),
                "alternatives": [row.describe(objective, prices) for row in rows],
                "estimator": estimator,
                "theorem_error_bound": theorem_error,
                "bottleneck": bottleneck,
                "power_limit": remark,
            }
        )
        return
    print_table(
        ("replicas", "in time", "percentile ms", "control limit", "max wait ms", "power W"),
        [_cells(row, chosen) for row in rows],
        title=f"{arrival_rate:g} requests/s, {objective.in_words()}: {replicas} replica"
        + ("s" if replicas > 1 else ""),
    )
    if remark is not None:
        click.echo(remark)
    if any(
        more.prediction.service_level < fewer.prediction.service_level
        for fewer, more in itertools.pairwise(rows)
    ):
        click.echo(_WAITS_LONGER)
    if bottleneck is not None:
        click.echo(f"bottleneck of a replica: {_STAGES[bottleneck]}")
    if prices is not None:
        click.echo(f"* costs {prices.per_h(chosen):.4g} an hour")
    if theorem_error is not None and theorem_error > objective.late_share_allowed:
        click.echo(
            f"Theorem 2 assumes independent tries; with {replicas} replicas and tries this short, "
            f"the service level may be up to {100 * theorem_error:.3g} points lower. "
            "--estimator batch models queues and batches."
        )


def _profile_and_config(
    profile: Path | None, config: Path | None
) -> tuple[Profile, "UserConfig | None"]:
    """Return the profile, with the `user_config` of the model if a config is given."""
    if (profile is None) == (config is None):
        raise InvalidInputError("give the profile, by --profile or by --config, and not by both")
    if config is None:
        assert profile is not None
        return Profile.load(profile), None
    # They load pydantic.
    from deployments.config.document import load_service_configs
    from deployments.models.loading import make_model

    sys.path.insert(0, str(Path.cwd()))  # the user's model may be in the working directory
    service = load_service_configs(config)[0]
    model = service.args.model
    found = model.load_profile() or make_model(model.import_path, model.options).profile()
    if found is None:
        raise InvalidInputError(
            f"{config}: model {model.name!r} has no profile; measure it by `sojourn profile`, and "
            "name the file under `profile` of the model"
        )
    return found, service.user_config


def _estimator(service: ServiceModel, name: str) -> FullBatchEstimator | ServiceEstimator:
    if name == "batch":
        return ServiceEstimator(service)
    profile = service.profile
    full_batch_ms = float(profile.batch_interval_ms()[-1])
    rate_per_s = 1e3 * profile.max_batch_size / full_batch_ms
    return FullBatchEstimator(rate_per_s, full_batch_ms, service.delays)


def _cells(row: Plan, chosen: Plan) -> list[object]:
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
