"""The resources of the HTTP interface: every path but that of inference.

Besides the Open Inference Protocol v2 there are those parts of Triton's extensions for the model's
configuration, for statistics and for the model repository that its clients ask for unasked.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from deployments.errors import NotFoundError
from deployments.http.answers import Answer, check_method, json_answer
from deployments.http.service import Service
from deployments.models.base import TensorSpec
from deployments.observability.inference_statistics import RequestTotals

_MODEL_PATH = re.compile(
    r"/v2/models/([^/]+)(?:/versions/([^/]+))?(?:/(infer|ready|config|stats))?"
)
_READ_METHODS = ("GET", "HEAD")
_EXTENSIONS = ("binary_tensor_data", "model_configuration", "schedule_policy", "statistics")
#: The parts of Triton's protocol that need more than one request, by how their paths begin.
_NOT_SUPPORTED = {
    "/v2/systemsharedmemory": "shared memory is not supported; send tensors in the body",
    "/v2/cudasharedmemory": "shared memory is not supported; send tensors in the body",
    "/v2/repository/models": "models cannot be loaded or unloaded by clients; deploy a config",
}


class Resources:
    """The content of every path but that of inference; parameters are those of `InferenceApp`."""

    def __init__(
        self,
        server_version: str,
        autoscaler: Callable[[], Awaitable[Mapping[str, Any]]],
        totals: RequestTotals,
        more: Mapping[str, Callable[[], Answer]] | None = None,
    ) -> None:
        self._server_version = server_version
        self._autoscaler = autoscaler
        self._totals = totals
        self._more = more or {}

    async def answer(self, service: Service, method: str, path: str) -> Answer | None:
        """Return the answer to a request for one of them, or raise a `RequestError`.

        The path is without the application's prefix, and without slashes at its end. None: it is
        that of inference by the service.
        """
        if path == "/sojourn/autoscaler":
            check_method(method, *_READ_METHODS)
            return json_answer(await self._autoscaler())
        if path == "/v2/repository/index":
            check_method(method, "POST")
            return json_answer([_index_entry(service)])
        # Triton's path for the statistics of all models, unless that is what the model is called.
        all_models = path == "/v2/models/stats" and service.model_name != "stats"
        found = None if all_models else _MODEL_PATH.fullmatch(path)
        if found is None:
            answer = self._server_answer(service, path)
            check_method(method, *_READ_METHODS)
            return answer
        name, version, verb = found.groups()
        _check_model(service, name, version)
        if verb == "infer":
            return None
        check_method(method, *_READ_METHODS)
        if verb == "ready":
            return _readiness_answer(service, {"name": name})
        if verb == "config":
            return json_answer(_config(service))
        if verb == "stats":
            return json_answer(self._statistics(service))
        return json_answer(_metadata(service))

    def _server_answer(self, service: Service, path: str) -> Answer:
        if path in self._more:
            return self._more[path]()
        match path:
            case "/v2":
                return json_answer(
                    {
                        "name": "sojourn",
                        "version": self._server_version,
                        "extensions": _EXTENSIONS,
                    }
                )
            case "/v2/health/live":
                return json_answer({"live": True})
            case "/v2/health/ready":
                return _readiness_answer(service, {})
            case "/v2/models":
                return json_answer({"models": [service.model_name]})
            case "/v2/models/stats":
                return json_answer(self._statistics(service))
            case "/sojourn/policy":
                return json_answer(service.explain())
            case "/sojourn/example":
                return json_answer(service.example_request())
        for start, problem in _NOT_SUPPORTED.items():
            if path.startswith(start):
                raise NotFoundError(problem)
        model_path = f"/v2/models/{service.model_name}"
        raise NotFoundError(f"there is no path {path or '/'!r:.100}; the model is at {model_path}")

    def _statistics(self, service: Service) -> Mapping[str, Any]:
        totals = self._totals.describe(
            service.model_name, service.model_version, service.batch_totals
        )
        return {"model_stats": [totals]}


def _check_model(service: Service, name: str, version: str | None) -> None:
    if name != service.model_name:
        raise NotFoundError(
            f"there is no model {name!r:.100}; this service has {service.model_name!r}"
        )
    if version is not None and version != service.model_version:
        raise NotFoundError(
            f"model {name!r} has no version {version!r:.100}; "
            f"its version is {service.model_version!r}"
        )


def _readiness_answer(service: Service, content: Mapping[str, Any]) -> Answer:
    return json_answer({**content, "ready": service.ready}, 200 if service.ready else 503)


def _index_entry(service: Service) -> Mapping[str, Any]:
    return {
        "name": service.model_name,
        "version": service.model_version,
        "state": "READY" if service.ready else "UNAVAILABLE",
        "reason": "" if service.ready else "it is starting or stopping, or its device hangs",
    }


def _metadata(service: Service) -> Mapping[str, Any]:
    return {
        "name": service.model_name,
        "versions": [service.model_version],
        "platform": service.platform,
        "inputs": _tensor_metadata(service.signature.inputs),
        "outputs": _tensor_metadata(service.signature.outputs),
    }


def _config(service: Service) -> Mapping[str, Any]:
    """Return the model's configuration, as Triton names it.

    Triton's largest batch is also the most rows of a request, and that is what its clients take it
    for. The batcher divides larger requests.
    """
    return {
        "name": service.model_name,
        "platform": service.platform,
        "backend": service.platform,
        "max_batch_size": service.signature.max_rows,
        "input": [_triton_tensor(spec) for spec in service.signature.inputs],
        "output": [_triton_tensor(spec) for spec in service.signature.outputs],
        "dynamic_batching": {
            "priority_levels": service.signature.priorities.levels,
            "default_priority_level": service.signature.priorities.levels,
        },
    }


def _tensor_metadata(specs: Sequence[TensorSpec]) -> list[Mapping[str, Any]]:
    """Return the protocol's metadata of tensors; -1 stands for any number of rows, or length."""
    return [
        {"name": spec.name, "datatype": spec.datatype, "shape": [-1, *spec.shape]}
        | ({"parameters": {"max_dim": spec.max_dim}} if spec.is_variable else {})
        for spec in specs
    ]


def _triton_tensor(spec: TensorSpec) -> Mapping[str, Any]:
    name = "STRING" if spec.datatype == "BYTES" else spec.datatype
    tensor = {"name": spec.name, "data_type": f"TYPE_{name}", "dims": spec.shape}
    # Its tensors have one dimension at least, besides the rows.
    return tensor if spec.shape else {**tensor, "dims": (1,), "reshape": {"shape": ()}}
