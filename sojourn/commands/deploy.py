"""`sojourn deploy`: change a running service, and say what is in force once it is."""

import os
from copy import deepcopy
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from deployments.access.credentials import read_token
from deployments.config.document import DEPLOYMENT, IMPORT_PATH, PIPELINE_IMPORT_PATH
from deployments.config.user_config import parse_user_config
from deployments.local.serve_api import ServeApi
from deployments.local.urls import ask, check_url
from deployments.pipelines.serving.config import DEPLOYMENT as PIPELINE_DEPLOYMENT
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective
from sojourn import option_types
from sojourn.output import json_option, print_json, say
from sojourn.served import load_served_file

#: The deployment that answers requests and has the SLA, by what builds an application.
_DEPLOYMENTS = {IMPORT_PATH: DEPLOYMENT, PIPELINE_IMPORT_PATH: PIPELINE_DEPLOYMENT}
_DASHBOARD = "http://127.0.0.1:8265"


@click.command()
@click.argument("config", metavar="[CONFIG]", required=False)
@click.option("--sla", type=option_types.sla, help="Another SLA, as in 50ms@95 or p95=50ms.")
@click.option("--application", help="The application that --sla is for, if there are several.")
@click.option(
    "-a",
    "--address",
    default=lambda: os.environ.get("RAY_DASHBOARD_ADDRESS", _DASHBOARD),
    show_default=f"RAY_DASHBOARD_ADDRESS, or {_DASHBOARD}",
    help="URL of Ray's dashboard; `sojourn serve` prints it.",
)
@click.option(
    "--timeout-s",
    type=option_types.Number(min=0),
    default=600.0,
    show_default=True,
    help="How long replicas may take until they serve.",
)
@json_option
def command(
    config: str | None,
    sla: ServiceLevelObjective | None,
    application: str | None,
    address: str,
    timeout_s: float,
    as_json: bool,
) -> int:
    """Check CONFIG, deploy it to a running cluster, wait, and say what is in force.

    Without CONFIG, only the SLA of what runs is changed; no replica restarts. The exit status is 1
    if a replica rejects what was deployed.
    """
    check_url("--address", address)
    if sla is None and application is not None:
        raise InvalidInputError("--application: says what --sla is for; add --sla")
    api = ServeApi(address)
    if config is not None:
        document = deepcopy(dict(load_served_file(Path(config), here=False).document))
    elif sla is not None:
        document = api.document()
    else:
        raise InvalidInputError("name a config, or another SLA for what runs: --sla 50ms@95")
    entries = {one.get("name", "default"): one for one in document["applications"]}
    if sla is not None:
        _set_sla(entries, sla, application)
    api.deploy(document)
    say("deployed; waiting for its replicas")
    states = api.wait_until_deployed(timeout_s)
    url = _url_of(api.document(), address)
    results = [
        {
            "application": name,
            "replicas": len(states[name]["deployments"][deployment]["replicas"]),
            **_in_force(url, entry),
        }
        for name, entry in entries.items()
        if (deployment := _DEPLOYMENTS.get(entry.get("import_path", "")))
    ]
    if as_json:
        print_json({"applications": results})
    else:
        for result in results:
            click.echo(_in_words(result))
    return int(any(result.get("config_error") for result in results))


def _set_sla(
    entries: dict[str, dict[str, Any]], sla: ServiceLevelObjective, application: str | None
) -> None:
    ours = [name for name, one in entries.items() if _deployment(one)]
    names = ours if application is None else [application]
    if len(names) != 1 or names[0] not in ours:
        raise InvalidInputError(
            f"--application: must be one of {', '.join(ours) or 'no application of Sojourn'}"
            + ("" if application is None else f", not {application!r}")
        )
    content = {"response_time_ms": sla.response_time_ms, "percentile": sla.percentile}
    parse_user_config({"sla": content})
    _deployment(entries[names[0]]).setdefault("user_config", {})["sla"] = content


def _deployment(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the deployment that has the SLA; empty if the application is none of Sojourn."""
    name = _DEPLOYMENTS.get(entry.get("import_path", ""))
    return next((one for one in entry.get("deployments") or () if one.get("name") == name), {})


def _url_of(document: dict[str, Any], dashboard: str) -> str:
    """Return where clients reach the service, as seen from the machine of the dashboard."""
    options = document["http_options"]
    return f"http://{urlsplit(dashboard).hostname}:{options['port']}"


def _in_force(url: str, entry: dict[str, Any]) -> dict[str, Any]:
    """Return what a replica says of its configuration, or why that is not known."""
    prefix = (entry.get("route_prefix") or "/").rstrip("/")
    try:
        policy = ask(f"{url}{prefix}", "/sojourn/policy", read_token())
    except InvalidInputError as error:
        return {"unknown": str(error)}
    names = ("sla_in_words", "control_limit", "max_wait_ms", "config_error")
    return {name: policy[name] for name in names if name in policy}


def _in_words(result: dict[str, Any]) -> str:
    name, replicas = result["application"], result["replicas"]
    if "unknown" in result:
        why = result["unknown"]
        return f"{name}: deployed, replicas: {replicas}; what is in force is not known ({why})"
    if result["config_error"]:
        return f"{name}: rejected: {result['config_error']}; {result['sla_in_words']} stay in force"
    limit = result.get("control_limit")
    batching = "" if limit is None else f", control limit {limit}"
    return f"{name}: {result['sla_in_words']} in force{batching}, replicas: {replicas}"
