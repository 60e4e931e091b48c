"""HAProxy's settings that follow from the config: what it can send to another replica, and may.

HAProxy sends a request again only if all of it fits into one of its buffers. It copies the whole
buffer for every request, however small: 22 µs of CPU per request with buffers of 64 KiB, 109 µs
with 608 KiB. So the buffer is as large as the model's requests need, and no larger.
"""

import math
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from deployments.config.document import ServiceConfig
from deployments.haproxy.routing import MAX_CLIENTS, held_environment
from deployments.models.base import Model

#: The smallest buffer: several rows of a small model.
MIN_BUFFER_BYTES = 64 << 10
#: The largest one that a signature alone leads to.
_MAX_BUFFER_BYTES = 16 << 20
#: For the head of a request, the JSON around the tensors, and the room that HAProxy keeps free.
_REST_BYTES = 16 << 10
#: Memory that HAProxy may use for the buffers of clients that send slowly; each holds one.
_BUFFER_MEMORY_BYTES = 1 << 30
_MIN_CONNECTIONS = 256
_RAYS_HARD_STOP_S = 120.0


class RequestTraits(NamedTuple):
    """The traits of a model's requests: bytes of one row without texts, and idempotence."""

    row_bytes: int = 0
    idempotent: bool = True


def traits_of(model: type[Model]) -> RequestTraits:
    """Return the traits of a model's class; its inputs may be unknown until it is loaded."""
    row_bytes = sum(
        math.prod(spec.max_shape) * spec.numpy_dtype.itemsize
        for spec in getattr(model, "inputs", ())
        if spec.datatype != "BYTES"
    )
    return RequestTraits(row_bytes, model.idempotent)


def traits_of_all(each: Sequence[RequestTraits]) -> RequestTraits:
    """Return the traits of requests to any of several models."""
    return RequestTraits(
        max((one.row_bytes for one in each), default=0), all(one.idempotent for one in each)
    )


def request_environment(
    services: Sequence[ServiceConfig],
    traits: Sequence[RequestTraits],
    own: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the environment variables for Ray beyond those of `serve_environment`.

    The `services` are behind one HAProxy: the buffer is that of the largest request. The user's own
    settings (`own`; by default, those in this process's environment) are left as they are.
    """
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
    # Services that have no replicas at times, or that answer late rather than never, have no limit.
    environment |= held_environment(
        {
            service.application: service.user_config.sla.response_time_ms
            for service in services
            if service.replicas[0] > 0 and service.user_config.limits.late == "refuse"
        }
    )
    return {name: own.get(name, value) for name, value in environment.items()}


def _needed_bytes(service: ServiceConfig, traits: RequestTraits) -> int:
    wanted = service.user_config.limits.expert.retry_body_bytes
    if wanted is None:
        return max(MIN_BUFFER_BYTES, min(traits.row_bytes + _REST_BYTES, _MAX_BUFFER_BYTES))
    return wanted + _REST_BYTES
