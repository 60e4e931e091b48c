"""Ray Serve's REST interface, on Ray's dashboard: what is deployed, and how a deployment goes."""

import json
import time
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError

from deployments.errors import StartError
from deployments.local.environment import ray_headers

_TIMEOUT_S = 30
_POLL_S = 0.5


class ServeApi:
    """Ray Serve on a cluster, by the URL of Ray's dashboard.

    All methods raise a `StartError` if the dashboard does not answer, or refuses.
    """

    def __init__(self, dashboard: str) -> None:
        self._url = f"{dashboard.rstrip('/')}/api/serve/applications/"

    def details(self) -> dict[str, Any]:
        """Return the state of Serve and of its applications."""
        content: dict[str, Any] = json.loads(self._ask("GET"))
        return content

    def document(self) -> dict[str, Any]:
        """Return the config file that is deployed."""
        details = self.details()
        return {
            "proxy_location": details["proxy_location"],
            "http_options": details["http_options"],
            "applications": [
                one["deployed_app_config"]
                for one in details["applications"].values()
                if one["deployed_app_config"]
            ],
        }

    def deploy(self, document: Mapping[str, Any]) -> None:
        """Deploy the content of a config file, as ``serve deploy`` does."""
        self._ask("PUT", document)

    def failures(self) -> dict[str, str]:
        """Return why applications failed to deploy, for those that did."""
        return _failures(self.details()["applications"])

    def wait_until_deployed(self, timeout_s: float) -> dict[str, Any]:
        """Wait until every replica has what was deployed last; return the applications' state.

        Raise a `StartError` if an application failed, or takes longer.
        """
        until_s = time.monotonic() + timeout_s
        while True:
            applications: dict[str, Any] = self.details()["applications"]
            for name, failure in _failures(applications).items():
                raise StartError(f"{name} did not start: {failure}")
            states = [
                entry["status"]
                for one in applications.values()
                for entry in one["deployments"].values()
            ]
            if set(states) <= {"HEALTHY"} and all(
                one["status"] == "RUNNING" for one in applications.values()
            ):
                return applications
            if time.monotonic() > until_s:
                raise StartError(f"not all replicas serve after {timeout_s:g} s; see the dashboard")
            time.sleep(_POLL_S)

    def _ask(self, method: str, document: Mapping[str, Any] | None = None) -> bytes:
        body = None if document is None else json.dumps(document, default=str).encode()
        headers = {"Content-Type": "application/json", **ray_headers()}
        request = urllib.request.Request(self._url, body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                content: bytes = answer.read()
                return content
        except HTTPError as error:
            reason = last_error([error.read().decode(errors="replace")])
            raise StartError(f"Ray refused ({error.code}): {reason}") from error
        except (OSError, HTTPException) as error:
            raise StartError(f"{self._url} does not answer ({error})") from error


def _failures(applications: Mapping[str, Any]) -> dict[str, str]:
    failures = {}
    for name, status in applications.items():
        if status["status"] == "DEPLOY_FAILED":
            deployments = status.get("deployments", {}).values()
            messages = [status.get("message", ""), *(entry["message"] for entry in deployments)]
            failures[name] = last_error(messages)
    return failures


def last_error(messages: list[str]) -> str:
    """Return the last exception in Ray's messages about a failed deployment, or the last line."""
    lines = [line.strip() for message in messages for line in message.splitlines() if line.strip()]
    for line in reversed(lines):
        name, colon, message = line.partition(": ")
        if colon and name.rpartition(".")[2].endswith(("Error", "Exception")):
            return message
    return lines[-1] if lines else "Ray gave no reason"
