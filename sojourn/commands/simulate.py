"""`sojourn simulate`: simulate a fleet on a trace, or at a constant rate."""

from pathlib import Path

import click
import numpy as np

from autoscaler.history.traces import counts_by_second, read_trace_file
from autoscaler.simulator.autoscalers import registry as catalog
from autoscaler.simulator.autoscalers.registry import choose
from autoscaler.simulator.batching_names import NAMES, parse_batching
from autoscaler.simulator.engines.interface import Routing
from autoscaler.simulator.experiments import (
    compare,
    least_predicted,
    poisson_scenario,
    run_fixed,
    with_history,
    with_trace,
)
from autoscaler.simulator.scenario import Failures, Scenario
from autoscaler.simulator.start_time import StartTime
from autoscaler.sizing.service_estimator import ServiceEstimator
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from sojourn import option_types
from sojourn.output import command_line, existing_file, json_option, print_json, say
from sojourn.reporting import simulation as output

_OF_A_FIXED_FLEET = {"arrival_rate", "replicas", "requests"}
_OF_A_TRACE = {
    *("scale", "start_time_s", "start_spread", "failed_starts", "standby_s", "superpose"),
    *("history_file", "names"),
}


@click.command("simulate")
@click.option("--profile", "profile_file", type=existing_file, required=True, help="Profile file.")
@option_types.sla_options("The SLA")
@click.option(
    "--trace",
    "trace_file",
    type=existing_file,
    help="Requests per second: CSV with the header second,requests, or its .gz.",
)
@click.option(
    "--history",
    "history_file",
    type=existing_file,
    help="Requests before --trace, from which Sojourn's autoscaler has learned; like --trace, or a "
    "row per minute. It ends where --trace begins, unless its times lie before that.",
)
@click.option(
    "--scale",
    type=option_types.scale,
    default=1.0,
    show_default=True,
    help="Factor on the trace's requests.",
)
@click.option(
    "--start-time-s",
    type=option_types.from_0,
    default=60.0,
    show_default=True,
    help="Time from ordering a replica until it serves requests.",
)
@click.option(
    "--start-spread",
    type=option_types.from_0,
    default=0.0,
    show_default=True,
    help="Standard deviation of the start time's logarithm; with 0 it is constant.",
)
@click.option(
    "--failed-starts",
    type=option_types.Number(min=0, max=1, max_open=True),
    default=0.0,
    show_default=True,
    help="Share of the starts that fail at their end and are tried again.",
)
@click.option(
    "--standby-s",
    type=option_types.from_0,
    help="Start time of Sojourn's standbys; --start-time-s applies to all other replicas.",
)
@click.option(
    "--superpose",
    is_flag=True,
    help="Smooth the trace's rate before scaling, and draw Poisson arrivals, as of many services.",
)
@click.option(
    "--autoscaler",
    "names",
    default=",".join(catalog.DEFAULT),
    show_default=True,
    help=f"Autoscalers to compare on the trace, comma-separated: {', '.join(catalog.AUTOSCALERS)}; "
    "NAME:VALUE sets the autoscaler's parameter.",
)
@click.option("--max-replicas", type=click.IntRange(min=1), default=1000, show_default=True)
@click.option(
    "--arrival-rate",
    type=option_types.arrival_rate,
    help="Instead of a trace: Poisson arrivals at a fixed fleet, requests per second.",
)
@click.option("--replicas", type=click.IntRange(min=1), help="Size of the fixed fleet.")
@click.option(
    "--power-limit-w",
    type=option_types.above_0,
    help="Most power of all replicas in W, as in a config: it comes before the SLA.",
)
@click.option(
    "--requests",
    type=click.IntRange(min=1),
    default=100_000,
    show_default=True,
    help="Approximate number of requests sent to the fixed fleet.",
)
@click.option(
    "--batching",
    default="sla",
    show_default=True,
    help=f"How replicas batch: {', '.join(NAMES)}.",
)
@click.option(
    "--balance",
    type=click.Choice([routing.value for routing in Routing]),
    default=Routing.RANDOM.value,
    show_default=True,
    help="How the load balancer picks a replica.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--report",
    "report_file",
    type=option_types.new_file,
    help="Write the results, with plots, to this HTML file.",
)
@json_option
@click.pass_context
def command(
    context: click.Context,
    profile_file: Path,
    sla: ServiceLevelObjective | None,
    response_time_ms: float | None,
    percentile: float | None,
    trace_file: Path | None,
    history_file: Path | None,
    scale: float,
    start_time_s: float,
    start_spread: float,
    failed_starts: float,
    standby_s: float | None,
    superpose: bool,
    names: str,
    max_replicas: int,
    arrival_rate: float | None,
    replicas: int | None,
    power_limit_w: float | None,
    requests: int,
    batching: str,
    balance: str,
    seed: int,
    report_file: Path | None,
    as_json: bool,
) -> None:
    """Simulate a fleet under its SLA, with the live service's own batching and autoscaling.

    On a trace, compare autoscalers on the same arrivals, with an oracle that knows them in advance.
    With --arrival-rate and --replicas, compare a fixed fleet with what the model predicts.
    """
    if trace_file is not None:
        why = "applies to a fixed fleet; omit it or --trace"
        option_types.refuse_options(context, _OF_A_FIXED_FLEET, why)
    elif arrival_rate is None or replicas is None:
        raise InvalidInputError("give --trace FILE, or --arrival-rate and --replicas")
    else:
        option_types.refuse_options(context, _OF_A_TRACE, "needs --trace")
    profile = Profile.load(profile_file)
    objective = option_types.required(option_types.chosen_sla(sla, response_time_ms, percentile))
    choices = choose(names)
    settings, policy = parse_batching(batching, profile)
    scenario = Scenario(
        profile=profile,
        objective=objective,
        counts=np.ones(1),
        start_time=StartTime(start_time_s, start_spread),
        failures=Failures(failed_start_share=failed_starts),
        standby_start_time=None if standby_s is None else StartTime(standby_s, start_spread),
        seed=seed,
        routing=Routing(balance),
        batching=policy,
        settings=settings,
        power_limit_w=power_limit_w,
        max_replicas=max_replicas,
    )
    if trace_file is not None:
        trace = read_trace_file(trace_file)
        counts = counts_by_second(trace, f"trace {trace_file}")
        scenario = with_trace(scenario, counts, scale, superpose)
        if history_file is not None:
            history = read_trace_file(history_file)
            scenario = with_history(scenario, trace, history, scale, superpose)
    _ = scenario.load_lateness_curve  # an SLA out of reach is an error
    predicted = least = None
    if arrival_rate is None or replicas is None:
        comparison = compare(scenario, choices)
    else:
        scenario = poisson_scenario(scenario, arrival_rate, requests)
        estimator = scenario.estimator
        if power_limit_w is not None:
            fleet = scenario.under_power_limit(arrival_rate, replicas)
            replicas, estimator = fleet.replicas, ServiceEstimator(fleet.service)
            say(f"{fleet.in_words} ({replicas} replicas).")
        comparison = run_fixed(scenario, replicas)
        predicted = estimator.predict(arrival_rate, replicas, objective)
        least = least_predicted(scenario, arrival_rate)
    if report_file is not None:
        # Importing matplotlib takes half a second.
        from autoscaler.simulator.reporting.report import render

        load = output.load_in_words(trace_file, scale, arrival_rate)
        title = f"{load}, {profile.model} on {profile.device}"
        page = render(comparison, title, command_line(context), predicted)
        report_file.write_text(page, encoding="utf-8")
    if as_json:
        print_json(output.content(comparison, predicted, replicas, least))
        return
    output.print_comparison(comparison, predicted, replicas, least)
    if power_limit_w is not None:
        output.print_most_power(comparison)
    if report_file is not None:
        say(f"Written to {report_file}.")
