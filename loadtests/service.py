"""The service under test, asked what it serves and what it has promised."""

import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote, urlsplit

from deployments.config import SLAConfig
from policy.errors import InvalidInputError

ASK_TIMEOUT_S = 10.0


def model_metadata(url: str, model: str) -> dict[str, Any]:
    """Ask what `model` takes and gives.

    Parameters
    ----------
    url : str
        Root of the service, ``http://HOST:PORT``.
    model : str
        Its name there.

    Returns
    -------
    dict
        As the Open Inference Protocol has it: name, inputs, outputs.

    Raises
    ------
    InvalidInputError
        `url` is none, nothing answers there, or it has no such model.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInputError(f"url: must be like http://127.0.0.1:8000, not {url!r}")
    try:
        metadata = _get(f"{url}/v2/models/{quote(model, safe='')}")
    except urllib.error.HTTPError as error:
        if error.code == 404:
            raise InvalidInputError(f"the service at {url} has no model {model!r}") from None
        raise InvalidInputError(f"the service at {url} is not ready: HTTP {error.code}") from None
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise InvalidInputError(
            f"no service answers at {url} ({reason}); `sojourn serve` starts one"
        ) from None
    except ValueError:
        metadata = None
    if not isinstance(metadata, dict) or not {"inputs", "outputs"} <= metadata.keys():
        raise InvalidInputError(f"what answers at {url} does not speak the Open Inference Protocol")
    return metadata


def service_sla(url: str) -> SLAConfig | None:
    """Ask for the SLA in force; None where the service does not tell."""
    try:
        return SLAConfig.model_validate(_get(f"{url}/sojourn/policy")["sla"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=ASK_TIMEOUT_S) as answer:
        return json.load(answer)
