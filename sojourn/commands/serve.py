"""`sojourn serve`: serve models and pipelines on this machine under their SLAs, until Ctrl-C."""

from __future__ import annotations

import json
import shlex
import signal
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from deployments.access.control import INFERENCE
from deployments.access.credentials import TOKEN_VARIABLE, read_token
from deployments.access.exposure import check_exposure
from deployments.access.web_pages import is_loopback
from deployments.config.yaml_file import parse_yaml
from deployments.haproxy.routing import serve_environment, supervisor_environment
from deployments.local.environment import ray_access
from deployments.local.run import LocalRun, ServedApplication
from deployments.local.service import LocalService, local_service
from deployments.local.urls import ask
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective
from sojourn import option_types
from sojourn.output import json_option, print_json, program, say
from sojourn.project import is_model, one_model_config
from sojourn.served import load_served_file

#: The default config.
DEFAULT_CONFIG = "configs/digits.yaml"
#: Longest request, in characters, that the summary shows in full.
MAX_EXAMPLE_LENGTH = 600
#: Options without effect where nothing is served.
_OF_A_RUN = {"host", "port", "insecure", "check", "environment", "print_config"}
#: Time to wait for the solved policy table before printing the policy in force.
TABLE_TIMEOUT_S = 10.0


@click.command()
@click.argument("config", metavar="[CONFIG|MODEL]", default=DEFAULT_CONFIG)
@click.option("--sla", type=option_types.sla, help="SLA of MODEL, as in 50ms@95 or p95=50ms.")
@click.option("--trust", is_flag=True, help="Let a joblib file run the code in it.")
@click.option("--print-config", is_flag=True, help="Print the config file of MODEL, and exit.")
@click.option(
    "--host",
    help="Address to listen on; overrides the config. Any but 127.0.0.1 opens the service "
    "to the network, and nothing else.",
)
@click.option(
    "--port", type=click.IntRange(1, 65535), help="Port to listen on; overrides the config."
)
@click.option(
    "--insecure", is_flag=True, help="Serve on a public address although no token is needed."
)
@click.option("--check", is_flag=True, help="Check the config file and exit.")
@click.option(
    "--load",
    is_flag=True,
    help="With --check: also open the store, load each model, start each stage, and run them once.",
)
@click.option(
    "--environment",
    is_flag=True,
    help="Print the environment that `ray` and `serve` need on your own cluster to "
    "serve CONFIG, and exit. Makes Ray's token if there is none.",
)
@json_option
@click.pass_context
def command(
    context: click.Context,
    config: str,
    sla: ServiceLevelObjective | None,
    trust: bool,
    print_config: bool,
    host: str | None,
    port: int | None,
    insecure: bool,
    check: bool,
    load: bool,
    environment: bool,
    as_json: bool,
) -> int:
    """Serve a config file (configs/digits.yaml) or a model on this machine, until Ctrl-C.

    CONFIG has Ray Serve's schema. MODEL is served under --sla: module:Class, an ONNX file, a joblib
    file of scikit-learn, or a folder that save_pretrained of Hugging Face's transformers wrote.
    """
    if load and not check:
        raise InvalidInputError("--load: add --check; a service always loads its models")
    for option, given in (("--environment", environment), ("--print-config", print_config)):
        if given:
            unused = _OF_A_RUN - {option.lstrip("-").replace("-", "_")}
            option_types.refuse_options(context, unused, f"{option} serves nothing; omit one")
    if is_model(config):
        if sla is None:
            raise InvalidInputError(f"{config} needs an SLA: add --sla 50ms@95")
        text = one_model_config(config, sla, trust=trust)
        if print_config:
            if as_json:
                print_json(parse_yaml(text))
            else:
                click.echo(text, nl=False)
            return 0
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "serve.yaml")
            path.write_text(text)
            run = load_served_file(path, check=not environment, load=load, own=False)
    else:
        if sla is not None or trust or print_config:
            raise InvalidInputError(
                f"--sla, --trust and --print-config need a model; edit {config}"
            )
        if config == DEFAULT_CONFIG and not Path(config).exists():
            raise InvalidInputError(
                f"there is no {config} here; name a config or a model, or write a project "
                "with `sojourn init`"
            )
        run = load_served_file(Path(config), check=not environment, load=load)
    if environment:
        settings = {
            **ray_access(),
            **serve_environment(),
            **run.environment,
            **supervisor_environment(),
        }
        if as_json:
            print_json(settings)
            return 0
        for name, value in settings.items():
            click.echo(f"export {name}={shlex.quote(value)}")
        return 0
    run = replace(run, http_host=host or run.http_host, http_port=port or run.http_port)
    for application in run.applications:
        check_exposure(run.http_host, application.access, insecure)
    for note in run.notes:
        say(note)
    if check:
        slas = {application.application: application.sla for application in run.applications}
        if as_json:
            print_json({"config": config, "slas": slas, "notes": run.notes})
        else:
            each = [f"{name}: {sla}" if len(slas) > 1 else sla for name, sla in slas.items()]
            say(f"{config} is fine: {'; '.join(each)}")
        return 0
    return _serve(run, as_json)


def _serve(run: LocalRun, as_json: bool) -> int:
    started_s = time.monotonic()
    interrupt = Interrupt()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, interrupt)
    try:
        with local_service(run, say) as running:
            start_s = time.monotonic() - started_s
            summaries = [
                _summary(application, url, running, start_s)
                for application, url in zip(run.applications, running.urls, strict=True)
            ]
            if as_json:
                print_json(summaries[0] if len(summaries) == 1 else {"models": summaries})
            else:
                for summary in summaries:
                    _print_summary(summary)
                click.echo("Ctrl-C stops it.")
            if not is_loopback(run.http_host):
                say(
                    f"Port {run.http_port} is open to everyone who reaches {run.http_host}:"
                    " requests, and the reports under /sojourn/. Everything else listens on this "
                    "machine only."
                )
            running.wait()
    except KeyboardInterrupt:
        pass
    return 0


class Interrupt:
    """A signal handler that stops the run at the first signal and kills it at the second.

    Each raises `KeyboardInterrupt`, wherever the run is. Signals in quick succession count as one:
    `timeout` signals a process and then its group. Signals after the second are ignored, because
    the run is then killing its processes.
    """

    #: Signals within this time are one.
    TOGETHER_S = 1.0

    def __init__(self) -> None:
        self._left = 2
        self._last_s = -self.TOGETHER_S

    def __call__(self, number: int, frame: object) -> None:
        """Handle a signal."""
        now_s = time.monotonic()
        if self._left and now_s >= self._last_s + self.TOGETHER_S:
            self._left -= 1
            self._last_s = now_s
            raise KeyboardInterrupt


def _summary(
    application: ServedApplication, url: str, running: LocalService, start_s: float
) -> dict[str, Any]:
    addresses = {
        "url": url,
        "dashboard": running.dashboard,
        "metrics_url": running.metrics_url,
        "model": application.model,
        "further_models": application.further_models,
        "sla": application.sla,
        "start_s": start_s,
    }
    try:
        policy = {} if application.is_pipeline else _solved_policy(url)
        request = ask(url, "/sojourn/example", read_token())
        example = json.dumps(request, separators=(",", ":"))
    except InvalidInputError as error:
        # It may need a token, or a replica may be busy or be replaced just now: the service runs.
        return {**addresses, "unknown": str(error)}
    closed = application.access.closed(INFERENCE)
    token = f'-H "Authorization: Bearer ${TOKEN_VARIABLE}" ' if closed else ""
    return {**addresses, **policy, "curl": _curl(url, application.model, example, token)}


def _curl(url: str, model: str, example: str, token: str) -> str:
    """Return a command that sends an example; a long one is fetched first."""
    infer = f"curl -s {token}{url}/v2/models/{model}/infer -d"
    if len(example) <= MAX_EXAMPLE_LENGTH:
        return f"{infer} {shlex.quote(example)}"
    return f"curl -s {token}{url}/sojourn/example | {infer} @-"


def _solved_policy(url: str) -> dict[str, Any]:
    """Return a summary of the policy, once its table is solved or after a time limit."""
    policy = ask(url, "/sojourn/policy", read_token())
    waited_until_s = time.monotonic() + TABLE_TIMEOUT_S
    while policy["table"] == "solving" and time.monotonic() < waited_until_s:
        time.sleep(0.2)
        policy = ask(url, "/sojourn/policy", read_token())
    return {name: policy[name] for name in ("table", "control_limit", "max_wait_ms")}


def _print_summary(summary: dict[str, Any]) -> None:
    click.echo(f"{summary['model']} answers at {summary['url']} ({summary['start_s']:.0f} s)")
    if summary["further_models"]:
        click.echo(f"  further models of its replicas: {', '.join(summary['further_models'])}")
    click.echo(f"  SLA: {summary['sla']}")
    click.echo(f"  console: {summary['url']}/sojourn/")
    if "unknown" in summary:
        click.echo(f"  the policy is not known: {summary['unknown']}")
        return
    if "table" in summary:
        click.echo(_policy_in_words(summary))
    command = f"{program('sojourn')} deploy -a {summary['dashboard']}"
    click.echo(f"  another SLA: {command} --sla 50ms@95; another config: {command} CONFIG")
    click.echo(f"  metrics for Prometheus: {summary['metrics_url']}")
    click.echo(f"Try it:\n\n{summary['curl']}\n")


def _policy_in_words(summary: dict[str, Any]) -> str:
    wait = summary["max_wait_ms"]
    solving = {
        "solving": "; the policy table is still being solved",
        "failed": "; the policy table could not be solved, see /sojourn/policy",
    }.get(summary["table"], "")
    return (
        f"  a batch starts when {summary['control_limit']} wait"
        + ("" if wait is None else f", or when the oldest has waited {wait:.3g} ms")
        + f" (the control limit now; it follows the load{solving})"
    )
