"""HAProxy's settings that follow from the config: what it can send to another replica, and may.

HAProxy sends a request again only if all of it fits into one of its buffers. It copies the whole
buffer for every request, however small: 22 µs of CPU per request with buffers of 64 KiB, 109 µs
with 608 KiB. So the buffer is as large as the model's requests need, and no larger.

The model's signature is read from its source, without running it: most models import torch, which
takes seconds. If the source computes it, a worker process imports the model.
"""

import ast
import importlib.util
import math
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NamedTuple

from autoscaler import worker
from deployments.config.document import ServiceConfig
from deployments.config.replica_args import ModelConfig
from deployments.haproxy.command import MAX_CLIENTS
from deployments.haproxy.routing import held_environment
from deployments.models.base import Model, TensorSpec
from deployments.models.loading import MODELS, find_model_class
from policy.errors import SojournError

#: The smallest buffer: several rows of a small model.
MIN_BUFFER_BYTES = 64 << 10
#: The largest one that a signature alone leads to.
_MAX_BUFFER_BYTES = 16 << 20
#: For the head of a request, the JSON beside the tensors, and what HAProxy keeps free.
_REST_BYTES = 16 << 10
#: Memory that HAProxy may use for the buffers of clients that send slowly; each holds one.
_BUFFER_MEMORY_BYTES = 1 << 30
_MIN_CONNECTIONS = 256
_IMPORT_TIMEOUT_S = 60.0
#: How many times the longest time for an answer Serve's proxy may hold a request without a replica.
#: While Ray deploys, requests take longer, and a late answer is better than none.
HELD_FACTOR = 3.0
_RAYS_HARD_STOP_S = 120.0


class RequestTraits(NamedTuple):
    """The traits of a model's requests: bytes of one row without texts, and idempotence."""

    row_bytes: int = 0
    idempotent: bool = True


def traits_of(model: type[Model]) -> RequestTraits:
    """Return the traits of a model's class; its inputs may be unknown until it is loaded."""
    return RequestTraits(_row_bytes(getattr(model, "inputs", ())), model.idempotent)


def _row_bytes(inputs: Sequence[TensorSpec]) -> int:
    return sum(
        math.prod(spec.max_shape) * spec.numpy_dtype.itemsize
        for spec in inputs
        if spec.datatype != "BYTES"
    )


def read_traits(config: ModelConfig) -> RequestTraits:
    """Return the traits of the model in a config; the defaults if it cannot be imported.

    The replica that loads the model says what is wrong with it.
    """
    try:
        declared = _declared_traits(MODELS.get(config.import_path, config.import_path))
    except (ImportError, OSError, SyntaxError, ValueError, TypeError, SojournError):
        declared = None
    return declared or _imported_traits(config)


def _declared_traits(import_path: str) -> RequestTraits | None:
    """Return the traits of a class whose body declares its inputs as literals; else None."""
    module_name, _, class_name = import_path.partition(":")
    if "." in module_name:
        module = importlib.util.find_spec(module_name)
    else:  # a user's model may be in the working directory, as for the replicas
        module = PathFinder.find_spec(module_name, [os.getcwd(), *sys.path])
    if module is None or module.origin is None or not module.origin.endswith(".py"):
        return None
    tree = ast.parse(Path(module.origin).read_bytes())
    (found,) = (
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name
    )
    declared = {
        ast.unparse(target): node.value
        for node in found.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    }
    inputs = declared.get("inputs")
    # What is inherited from another base is not known.
    if not isinstance(inputs, ast.Tuple) or list(map(ast.unparse, found.bases)) != ["Model"]:
        return None
    specs = []
    for call in inputs.elts:
        if not isinstance(call, ast.Call) or ast.unparse(call.func) != TensorSpec.__name__:
            return None
        named = {word.arg or "": ast.literal_eval(word.value) for word in call.keywords}
        specs.append(TensorSpec(*map(ast.literal_eval, call.args), **named))
    idempotent = declared.get("idempotent", ast.Constant(True))
    return RequestTraits(_row_bytes(specs), bool(ast.literal_eval(idempotent)))


def _imported_traits(config: ModelConfig) -> RequestTraits:
    try:
        traits: RequestTraits = worker.run(
            f"{__name__}:traits_at", config.import_path, time_limit_s=_IMPORT_TIMEOUT_S
        )
        return traits
    except SojournError:
        return RequestTraits()


def traits_at(import_path: str) -> RequestTraits:
    return traits_of(find_model_class(import_path))


def request_environment(
    services: Sequence[ServiceConfig],
    traits: Sequence[RequestTraits] | None = None,
    own: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the environment variables for Ray beyond those of `serve_environment`.

    The `services` are behind one HAProxy: the buffer is that of the largest request. The `traits`
    of the models are read by default. What the user has set (`own`; by default, in this process's
    environment) is left as it is.
    """
    if traits is None:
        hosted = [(service, model) for service in services for model in service.args.all_models]
        services = [service for service, _ in hosted]
        traits = [read_traits(model) for _, model in hosted]
    own = os.environ if own is None else own
    needed_bytes = max(map(_needed_bytes, services, traits))
    buffer_bytes = -(-needed_bytes // 1024) * 1024
    connections = max(_BUFFER_MEMORY_BYTES // buffer_bytes, _MIN_CONNECTIONS)
    environment = {
        "RAY_SERVE_HAPROXY_TUNE_BUFSIZE": str(buffer_bytes),
        "RAY_SERVE_HAPROXY_MAXCONN": str(min(connections, MAX_CLIENTS)),
    }
    if not all(each.idempotent for each in traits):
        # An empty response is that of a replica that died, perhaps while it computed the request.
        environment["RAY_SERVE_HAPROXY_RETRY_ON"] = "503 conn-failure"
    # After this time, HAProxy closes what a reload has left unanswered.
    longest_s = max(service.user_config.limits.expert.max_timeout_ms for service in services) / 1e3
    if longest_s > _RAYS_HARD_STOP_S:
        environment["RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"] = str(math.ceil(longest_s))
    environment |= held_environment(
        {each.application: _held_ms(each) for each in services if each.replicas[0] > 0}
    )
    return {name: own.get(name, value) for name, value in environment.items()}


def _held_ms(service: ServiceConfig) -> float:
    """Return how long a request may wait for a replica to be there and to answer it."""
    limits, sla = service.user_config.limits, service.user_config.sla
    return HELD_FACTOR * (
        limits.expert.max_timeout_ms if limits.late == "serve" else sla.response_time_ms
    )


def _needed_bytes(service: ServiceConfig, traits: RequestTraits) -> int:
    wanted = service.user_config.limits.expert.retry_body_bytes
    if wanted is None:
        return max(MIN_BUFFER_BYTES, min(traits.row_bytes + _REST_BYTES, _MAX_BUFFER_BYTES))
    return wanted + _REST_BYTES
