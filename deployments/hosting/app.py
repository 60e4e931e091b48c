"""The HTTP interface of a replica with several models or versions.

Each model has an `InferenceApp`. This app is the first model's; it routes requests of the other
models by URL, and answers the index of the protocol's repository extension.
"""

import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.types import Receive, Scope

from deployments.access.control import INFERENCE, OPERATIONS
from deployments.errors import (
    BadRequestError,
    BusyError,
    ModelError,
    NotFoundError,
    RequestError,
)
from deployments.hosting.reconciler import ModelReconciler
from deployments.hosting.version import State
from deployments.http.answers import Answer, check_method, json_answer
from deployments.http.app import InferenceApp, path_of
from deployments.http.request_body import load_json, read_body
from deployments.http.request_head import AUTHORIZATION
from deployments.modelstore.errors import StoreFullError, UnknownModelError
from deployments.observability.request_info import RequestInfo
from deployments.serving.service import InferenceService
from policy.errors import InvalidInputError, SojournError

_MODEL = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?(/.*)?")
_MAX_BODY_BYTES = 64 << 10


class HostingApp(InferenceApp):
    def __init__(
        self,
        reconciler: ModelReconciler,
        server_version: str,
        autoscaler: Callable[[], Awaitable[Mapping[str, Any]]],
        replica: str = "",
    ) -> None:
        policy = {"/sojourn/policy": self._policy}
        super().__init__(reconciler.repository.first, server_version, autoscaler, policy, replica)
        self._reconciler, self._repository = reconciler, reconciler.repository
        self._arguments = server_version, autoscaler
        self._apps: dict[str, InferenceApp] = {self.service.model_name: self}

    def take_over(self, service: InferenceService) -> None:
        """Send a model's requests to another service from now on."""
        app = self._apps.get(service.model_name)
        if app is not None:
            app.service = service

    @property
    def concurrency(self) -> int | None:
        """None for several models: they share the event loop, but not their devices."""
        return super().concurrency if len(self._repository.names) == 1 else None

    @property
    def max_body_bytes(self) -> int:
        return max(service.max_body_bytes for service in self._repository.services)

    def reports(self) -> list[Mapping[str, Any]]:
        """Return all models' reports for ``GET /sojourn/policy``, the first model's first."""
        return [service.explain() for service in self._repository.services]

    async def _route(
        self,
        scope: Scope,
        fields: Mapping[bytes, bytes],
        receive: Receive,
        arrival_s: float,
        info: RequestInfo,
    ) -> Answer:
        path = path_of(scope)
        if path == "/v2/repository/index":
            info.token = self.admit_client(fields, OPERATIONS)
            check_method(scope["method"], "POST")
            return self._index(await read_body(receive, fields, _MAX_BODY_BYTES))
        model = _MODEL.fullmatch(path)
        if path == "/v2/models" and scope["method"] in ("GET", "HEAD"):
            info.token = self.admit_client(fields, INFERENCE)
            return json_answer({"models": self._repository.names})
        if model is None or model[1] not in self._repository.names:
            return await super()._route(scope, fields, receive, arrival_s, info)
        name, version, verb = model.groups()
        info.model = name
        if self._repository.on_demand and verb != "/ready":
            arrival_s = await self._load_on_demand(name, fields, arrival_s)
        with self._repository.using(name, version) as service:
            app = self._apps.get(name)
            if app is None:
                app = self._apps[name] = InferenceApp(service, *self._arguments)
            if app is self:
                return await super()._route(scope, fields, receive, arrival_s, info)
            return await app._route(scope, fields, receive, arrival_s, info)

    def _policy(self) -> Answer:
        """Answer with the first model's report, the others', and the repository's index."""
        first, *others = self.reports()
        models = {report["model"]: report for report in others}
        return json_answer({**first, "repository": self._repository.index(), "models": models})

    async def _load_on_demand(
        self, name: str, fields: Mapping[bytes, bytes], arrival_s: float
    ) -> float:
        """Load a model if necessary; return the time from which its request counts.

        Loading takes longer than any SLA allows, so the request counts from its end.
        """
        if self._repository.is_serving(name):
            return arrival_s
        # Without access to a model, nobody can load it; the app below counts rates.
        access = self.service.access
        if not access.allows(fields.get(AUTHORIZATION), INFERENCE):
            self.admit_client(fields, INFERENCE)
        try:
            await self._reconciler.load_on_demand(name)
        except StoreFullError as error:
            raise BusyError(f"model {name!r} has no room now: {error}", "memory") from error
        except SojournError as error:
            raise _as_request_error(error) from error
        return time.monotonic()

    def _index(self, body: bytes) -> Answer:
        asked = load_json(body or b"{}")
        if not isinstance(asked, dict):
            raise BadRequestError("the body must be an object")
        rows = self._repository.index()
        if asked.get("ready") is True:
            rows = [row for row in rows if row["state"] == State.READY.value]
        return json_answer(rows)


def _as_request_error(error: SojournError) -> RequestError:
    """Return the client's error for a model that cannot be loaded."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, InvalidInputError):
        return BadRequestError(str(error))
    if isinstance(error, UnknownModelError):
        return NotFoundError(str(error))
    # Not 503: other replicas must not retry a failed load.
    return ModelError(str(error))
