"""`sojourn pipeline`: serve, plan, simulate, measure and run pipelines of stages."""

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO

import click
import numpy as np
import orjson

from deployments.access.exposure import check_exposure
from deployments.models.base import TensorSpec
from deployments.pipelines.pipeline import Pipeline
from deployments.pipelines.serving.config import load_pipeline_file
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective
from sojourn import option_types
from sojourn.item_lines import read_items, result_line
from sojourn.name_clashes import clash_in
from sojourn.output import existing_file, json_option, print_json, print_table, say

#: Requests of a simulation; all their times are in memory.
MAX_SIMULATED = 20_000_000


@click.group("pipeline")
def command() -> None:
    """Serve, plan, simulate, measure and run pipelines of stages under one SLA.

    FILE is a config file such as configs/digits-pipeline.yaml. Every command has --json, which
    prints one JSON object.
    """
    # The code of the stages may be in the working directory.
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


config_file = click.argument("file", type=existing_file)


@command.command(short_help="Serve the pipeline on this machine, without Ray.")
@config_file
@click.option("--host", help="Address to listen on; overrides the config.")
@click.option(
    "--port", type=click.IntRange(1, 65535), help="Port to listen on; overrides the config."
)
@click.option(
    "--insecure", is_flag=True, help="Serve on a public address although no token is needed."
)
@click.option("--check", is_flag=True, help="Check the config file and exit.")
@json_option
def serve(
    file: Path, host: str | None, port: int | None, insecure: bool, check: bool, as_json: bool
) -> None:
    """Serve the pipeline of FILE on this machine, without Ray, until Ctrl-C."""
    if clash := clash_in(Path.cwd()):
        raise InvalidInputError(clash)
    config = load_pipeline_file(file)
    steps = config.pipeline.build()
    sla = config.user_config.sla.objective.in_words()
    if check:
        say(f"{file} is fine: {len(steps)} steps, {sla}")
        return
    if host or port:
        config = config.model_copy(
            update={"http_host": host or config.http_host, "http_port": port or config.http_port}
        )
    check_exposure(config.http_host, config.user_config.access, insecure)
    import uvloop  # only serving needs these

    from deployments.pipelines.serving.server import serve_pipeline

    name = config.pipeline.name

    def ready(url: str) -> None:
        model = f"{url}/v2/models/{name}"
        if as_json:
            print_json({"url": url, "model": name, "sla": sla})
        else:
            click.echo(f"{name} answers at {url}\n  SLA: {sla}\n  console: {url}/sojourn/")
            click.echo("Try it:\n")
            click.echo(f"curl -s {url}/sojourn/example | curl -s {model}/infer -d @-")
            click.echo(f"curl -s {url}/sojourn/pipeline\n\nCtrl-C stops it.")
        sys.stdout.flush()

    uvloop.run(serve_pipeline(config, ready))


@command.command(short_help="Find the workers of each stage that keep the SLA.")
@config_file
@click.option(
    "--arrival-rate",
    type=option_types.arrival_rate,
    required=True,
    help="Poisson arrivals, requests per second.",
)
@option_types.sla_options("An SLA that overrides that of FILE")
@json_option
def plan(
    file: Path,
    arrival_rate: float,
    sla: ServiceLevelObjective | None,
    response_time_ms: float | None,
    percentile: float | None,
    as_json: bool,
) -> None:
    """Find the workers of each stage that keep the SLA of FILE at little cost.

    Every stage needs a profile; `sojourn pipeline profile` measures it. The SLA applies to the
    whole pipeline; its division among the stages is computed.
    """
    config = load_pipeline_file(file)
    steps = config.pipeline.build()
    sla = (
        option_types.chosen_sla(sla, response_time_ms, percentile)
        or config.user_config.sla.objective
    )
    from deployments.pipelines.planning.sizing import plan_pipeline  # importing numba is slow

    found = plan_pipeline(steps, arrival_rate, sla, config.pipeline.worker_costs())
    stages = [
        {
            "name": name,
            "workers": setting.workers,
            "control_limit": setting.policy.control_limit,
            "max_batch_size": setting.policy.max_batch_size,
            "max_wait_ms": setting.policy.max_wait_ms,
            "budget_ms": found.budgets_ms[name],
            "mean_batch_size": found.loads[name].mean_batch_size,
            "utilization": found.loads[name].utilization,
        }
        for name, setting in found.settings.items()
    ]
    if as_json:
        print_json(
            {
                "stages": stages,
                "cost": found.cost,
                "predicted_percentile_ms": found.percentile_ms,
                "predicted_service_level": found.service_level,
                "mean_power_w": found.mean_power_w,
            }
        )
        return
    shown = ("name", "workers", "mean_batch_size", "utilization", "budget_ms")
    print_table(
        ("stage", "workers", "mean batch", "utilization", "budget (ms)"),
        [tuple(stage[key] for key in shown) for stage in stages],
        title=f"{sla.in_words()} at {arrival_rate:g} requests/s",
    )
    click.echo(
        f"cost {found.cost:g}; p{sla.percentile:g} {found.percentile_ms:.4g} ms; "
        f"{found.service_level:.3%} in time"
    )


@command.command(short_help="Simulate the pipeline in virtual time.")
@config_file
@click.option(
    "--arrival-rate",
    type=option_types.arrival_rate,
    help="Poisson arrivals, requests per second.",
)
@click.option(
    "--duration-s",
    type=option_types.Number(min=1),
    default=60.0,
    show_default=True,
    help="With --arrival-rate: for how long.",
)
@click.option(
    "--trace",
    "trace_file",
    type=existing_file,
    help="Instead of --arrival-rate: CSV with the header second,requests, or its .gz.",
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
    default=1.0,
    show_default=True,
    help="From the order of a worker until it takes batches, if the stages follow the load.",
)
@json_option
def simulate(
    file: Path,
    arrival_rate: float | None,
    duration_s: float,
    trace_file: Path | None,
    scale: float,
    start_time_s: float,
    as_json: bool,
) -> None:
    """Simulate the pipeline of FILE with the live core in virtual time, refusals included.

    Every stage needs a profile. With `autoscaling` in FILE the workers follow the load.
    """
    if (arrival_rate is None) == (trace_file is None):
        raise InvalidInputError("give --arrival-rate or --trace, one of them")
    from deployments.pipelines.planning.simulation import simulate_pipeline  # it loads numba

    config = load_pipeline_file(file)
    user_config = config.user_config
    sla, scaling = user_config.sla.objective, config.pipeline.autoscaling
    arrivals_s = _arrivals_s(arrival_rate, duration_s, trace_file, scale)
    run = simulate_pipeline(
        config.pipeline.build(),
        arrivals_s,
        sla,
        config.pipeline.expert.max_pending,
        refuse=user_config.limits.late == "refuse",
        divisions=config.pipeline.solve_divisions(sla),
        scale_down_delay_s=scaling.scale_down_delay_s if scaling else 0.0,
        start_time_s=start_time_s,
    )
    answered = run.response_ms.size
    result = {
        "offered": run.offered,
        "answered": answered,
        "refused": run.refused,
        "late": run.late,
        "service_level": run.service_level,
        "percentile_ms": np.percentile(run.response_ms, sla.percentile) if answered else None,
        "stages": [asdict(stage) for stage in run.stages],
    }
    if as_json:
        print_json(result)
        return
    print_table(
        ("stage", "mean workers", "utilization", "mean batch"),
        [
            (
                stage.name,
                stage.mean_workers,
                stage.utilization,
                stage.items / stage.batches if stage.batches else 0.0,
            )
            for stage in run.stages
        ],
        title=sla.in_words(),
    )
    click.echo(
        f"{run.offered} requests: {run.service_level:.3%} in time, {run.refused} refused, "
        f"{run.late} cancelled late"
    )
    if answered:
        click.echo(f"p{sla.percentile:g} of the answered {result['percentile_ms']:.4g} ms")


def _arrivals_s(
    arrival_rate: float | None, duration_s: float, trace_file: Path | None, scale: float
) -> Sequence[float]:
    """Return the times at which requests arrive."""
    from autoscaler.history.traces import load_trace
    from autoscaler.simulator.arrivals import ArrivalTimes, WithinSecond, scaled_counts

    random = np.random.default_rng(0)
    if trace_file is not None:
        counts = scaled_counts(load_trace(trace_file), scale, random)
        _check_number(float(counts.sum()))
        times = ArrivalTimes(counts, WithinSecond.UNIFORM, random)
        return [time_s for second in range(counts.size) for time_s in times.of_second(second)]
    assert arrival_rate is not None
    _check_number(arrival_rate * duration_s)
    times_s: list[float] = np.cumsum(
        random.exponential(1 / arrival_rate, round(arrival_rate * duration_s))
    ).tolist()
    return times_s


def _check_number(requests: float) -> None:
    if requests > MAX_SIMULATED:
        raise InvalidInputError(f"load: {requests:.3g} requests; at most {MAX_SIMULATED:,}")


@command.command(short_help="Measure the time of each stage's batches.")
@config_file
@click.option(
    "--seconds", type=option_types.Number(min=0.01), default=0.2, help="For each batch size."
)
@json_option
def profile(file: Path, seconds: float, as_json: bool) -> None:
    """Measure the time of each stage's batches, for its `profile` in FILE.

    The config needs an example: a function that returns an item.
    """
    config = load_pipeline_file(file).pipeline
    if config.example is None:
        raise InvalidInputError(f"{file}: pipeline.example: measuring needs it")
    from deployments.pipelines.planning.profiling import measure_profiles
    from deployments.pipelines.serving.step_config import import_function

    example = import_function(config.example)()
    steps = config.build()
    profiles = asyncio.run(
        measure_profiles(
            steps, example, seconds=seconds, report=lambda stage: say(f"measuring {stage}")
        )
    )
    if as_json:
        print_json({name: measured.to_dict() for name, measured in profiles.items()})
        return
    print_table(
        ("stage", "batch", "ms", "items/s"),
        [
            (name, size, ms, 1e3 * size / ms)
            for name, measured in profiles.items()
            for size, ms in zip(
                measured.measured["batch_sizes"], measured.measured["median_ms"], strict=True
            )
        ],
    )


@command.command(short_help="Run the items of a file through the pipeline.")
@config_file
@click.argument("items", type=click.File("rb"))
@click.option("--in-flight", type=click.IntRange(min=1), help="The most items at a time.")
@json_option
def run(file: Path, items: IO[bytes], in_flight: int | None, as_json: bool) -> None:
    """Run the items of a file through the pipeline of FILE: bulk work without a server.

    ITEMS has one JSON object per line, with the inputs of the pipeline by name; "-" is standard
    input. Bytes are text, or {"base64": "..."}. The results are printed one per line, in the same
    order; a line that failed is {"error": "..."}. With --json a summary follows on standard error.
    """
    config = load_pipeline_file(file).pipeline
    inputs = [tensor.spec for tensor in config.inputs]
    started_s = time.monotonic()
    counts = asyncio.run(_run(Pipeline(config.build()), inputs, items, in_flight))
    summary = {**counts, "seconds": time.monotonic() - started_s}
    if as_json:
        say(orjson.dumps(summary).decode())
    else:
        say(f"{counts['completed']} results, {counts['failed']} errors")


async def _run(
    pipeline: Pipeline, inputs: Sequence[TensorSpec], items: IO[bytes], in_flight: int | None
) -> dict[str, int]:
    counts = {"completed": 0, "failed": 0}
    async with pipeline:
        async for result in pipeline.stream(read_items(inputs, items), in_flight=in_flight):
            counts["failed" if isinstance(result, Exception) else "completed"] += 1
            click.echo(result_line(result))
    return counts
