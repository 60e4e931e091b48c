"""Queries to the service under test: the model's metadata and the SLA."""

import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from deployments.config.user_config import SLAConfig
from deployments.local.urls import NO_ANSWER, ask, check_url, error_message, get_json
from loadtests.answers import Case
from policy.errors import InvalidInputError


def model_metadata(url: str, model: str | None, token: str | None = None) -> dict[str, Any]:
    """Return the metadata of a model that the service hosts, as in the Open Inference Protocol.

    None stands for its only model. Whatever the service answers instead is an `InvalidInputError`.
    """
    check_url("--url", url)
    if model is None:
        hosted = ask(url, "/v2/models", token).get("models")
        if not isinstance(hosted, list) or not all(isinstance(name, str) for name in hosted):
            hosted = []
        if len(hosted) > 1:
            names = ", ".join(hosted)
            raise InvalidInputError(f"the service at {url} has {names}: choose one by --model")
        model = next(iter(hosted), None)
    metadata = ask(url, f"/v2/models/{quote(model, safe='')}", token) if model else {}
    if not {"name", "inputs", "outputs"} <= metadata.keys():
        raise InvalidInputError(f"the service at {url} does not speak the Open Inference Protocol")
    return metadata


def service_sla(url: str, model: str, token: str | None = None) -> SLAConfig | None:
    """Return a model's current SLA, or None if the service does not reveal it to this token."""
    try:
        policy = policy_of(model, read_json(url, token, "/sojourn/policy") or {})
        return SLAConfig.model_validate(policy["sla"])
    except (ValueError, KeyError):
        return None


def policy_of(model: str, policy: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return one model's part of ``GET /sojourn/policy``, empty if the model is not loaded.

    A replica with several models has the first one's at the top level, and the others under
    `models`.
    """
    if policy.get("model", model) == model:
        return policy
    of_model: Mapping[str, Any] = policy.get("models", {}).get(model, {})
    return of_model


def read_json(url: str, token: str | None, path: str) -> dict[str, Any] | None:
    """Return the JSON object at a path of the service, or None without access."""
    with suppress(InvalidInputError):
        return ask(url, path, token)
    return None


def recorded_outputs(
    url: str, model: str, case: Case, token: str | None = None
) -> list[dict[str, Any]]:
    """Send a request once and return the outputs of the answer, as the expected ones.

    Raises
    ------
    InvalidInputError
        The service refuses the request (the message includes its own) or cannot be reached.
    """
    request = urllib.request.Request(
        f"{url}/v2/models/{quote(model, safe='')}/infer", case.body, dict(case.headers)
    )
    try:
        outputs: list[dict[str, Any]] = get_json(request, token)["outputs"]
    except urllib.error.HTTPError as error:
        raise InvalidInputError(
            f"the service answers HTTP {error.code}{error_message(error)}"
        ) from None
    except (*NO_ANSWER, ValueError, KeyError, TypeError) as error:
        raise InvalidInputError(f"the service at {url} gave no answer: {error}") from None
    return outputs
