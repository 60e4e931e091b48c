"""`sojourn pipeline`: serve, plan, measure and run pipelines of stages."""

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import click
import orjson

from deployments.access.exposure import check_exposure
from deployments.models.base import TensorSpec
from deployments.models.threads import limit_threads
from deployments.modelstore.manager.running import use_in_process
from deployments.pipelines.pipeline import Pipeline
from deployments.pipelines.serving.config import PipelineConfig, load_pipeline_file
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective
from sojourn import option_types
from sojourn.item_lines import read_items, result_line
from sojourn.name_clashes import clash_in
from sojourn.output import existing_file, json_option, print_json, print_table, say


@click.group("pipeline")
def command() -> None:
    """Serve, plan, measure and run pipelines of stages under one SLA.

    FILE is a config file such as configs/digits-pipeline.yaml. Every command has --json, which
    prints one JSON object.
    """
    # The code of the stages may be in the working directory.
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    limit_threads(1)  # of each worker


config_file = click.argument("file", type=existing_file)


@command.command()
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
    """Serve the pipeline of FILE on this machine, without Ray."""
    if clash := clash_in(Path.cwd()):
        raise InvalidInputError(clash)
    config = load_pipeline_file(file)
    steps = config.pipeline.build()
    sla = config.user_config.sla.objective.in_words()
    if check:
        if as_json:
            print_json({"config": str(file), "steps": len(steps), "sla": sla})
        else:
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

    _use_store(config.pipeline)
    uvloop.run(serve_pipeline(config, ready))


@command.command()
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
    """Find the workers of each stage that keep the SLA of FILE.

    Every stage needs a profile; `sojourn pipeline profile` measures it. The SLA applies to the
    whole pipeline; its division among the stages is computed. The arrival rate is multiplied by
    the config's autoscaling.burst_factor. The share in time is that of the running pipeline, which
    refuses and drops what would be late, unless FILE says to serve it late.
    """
    config = load_pipeline_file(file)
    steps = config.pipeline.build()
    sla = (
        option_types.chosen_sla(sla, response_time_ms, percentile)
        or config.user_config.sla.objective
    )
    from deployments.pipelines.planning.sizing import plan_pipeline  # importing numba is slow
    from deployments.pipelines.serving.planning import described

    scaling = config.pipeline.autoscaling
    found = plan_pipeline(
        steps,
        arrival_rate * (1.0 if scaling is None else scaling.burst_factor),
        sla,
        config.pipeline.worker_costs(),
        counts_refusals=config.user_config.limits.late == "refuse",
    )
    result = described(found, sla)
    if as_json:
        print_json(result)
        return
    shown = ("name", "workers", "mean_batch_size", "utilization", "budget_ms")
    print_table(
        ("stage", "workers", "mean batch", "utilization", "budget (ms)"),
        [tuple(stage[key] for key in shown) for stage in result["stages"]],
        title=f"{sla.in_words()} at {arrival_rate:g} requests/s",
    )
    click.echo(
        f"cost {found.cost:g}; p{sla.percentile:g} {found.percentile_ms:.4g} ms; "
        f"{found.service_level:.3%} in time"
    )


@command.command()
@config_file
@click.option(
    "--seconds", type=option_types.Number(min=0.01), default=0.2, help="For each batch size."
)
@json_option
def profile(file: Path, seconds: float, as_json: bool) -> None:
    """Measure the time of each stage's batches, for its `profile`.

    The config needs an example: a function that returns an item.
    """
    config = load_pipeline_file(file).pipeline
    if config.example is None:
        raise InvalidInputError(f"{file}: pipeline.example: measuring needs it")
    from deployments.pipelines.planning.profiling import measure_profiles
    from deployments.pipelines.serving.step_config import import_function

    _use_store(config)
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


@command.command()
@config_file
@click.argument("items", type=click.File("rb"))
@click.option("--in-flight", type=click.IntRange(min=1), help="The most items at a time.")
@json_option
def run(file: Path, items: IO[bytes], in_flight: int | None, as_json: bool) -> None:
    """Run the items of a file through the pipeline of FILE.

    ITEMS has one JSON object per line, with the inputs of the pipeline by name; "-" is standard
    input. Bytes are text, or {"base64": "..."}. The results are printed one per line, in the same
    order; a line that failed is {"error": "..."}. With --json a summary follows on standard error.
    """
    config = load_pipeline_file(file).pipeline
    inputs = [tensor.spec for tensor in config.inputs]
    _use_store(config)
    started_s = time.monotonic()
    counts = asyncio.run(_run(Pipeline(config.build()), inputs, items, in_flight))
    summary = {**counts, "seconds": time.monotonic() - started_s}
    if as_json:
        say(orjson.dumps(summary).decode())
    else:
        say(f"{counts['completed']} results, {counts['failed']} errors")


def _use_store(config: PipelineConfig) -> None:
    if config.store is not None:
        use_in_process(config.store.settings())


async def _run(
    pipeline: Pipeline, inputs: Sequence[TensorSpec], items: IO[bytes], in_flight: int | None
) -> dict[str, int]:
    counts = {"completed": 0, "failed": 0}
    async with pipeline:
        async for result in pipeline.stream(read_items(inputs, items), in_flight=in_flight):
            counts["failed" if isinstance(result, Exception) else "completed"] += 1
            click.echo(result_line(result))
    return counts
