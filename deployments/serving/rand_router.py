"""RAND routing for handle calls between deployments: a request router class for Ray Serve.

For HTTP requests, HAProxy does the same (`deployments.haproxy.routing`). Enable the router in the
section of a deployment in the config file::

    request_router_config:
      request_router_class: deployments.serving.rand_router:RandRequestRouter
      request_router_kwargs: {retry_delay_ms: 10}

Serve's own router picks the less busy of two replicas. If both are full, it waits 25 ms, then 50,
up to half a second: too long for most SLAs. A replica is full when it has `max_ongoing_requests`.
"""

import asyncio
import random

from ray.serve.request_router import (
    FIFOMixin,
    PendingRequest,
    ReplicaID,
    RequestRouter,
    RunningReplica,
)

from policy.values import check_at_least

#: Default of RAND's retry delay Δ: about the cost of one try.
RETRY_DELAY_MS = 5.0


class RandRequestRouter(FIFOMixin, RequestRouter):  # type: ignore[misc]
    """Sends a request to a random replica and, if that is full, to another one after a delay Δ."""

    def initialize_state(self, retry_delay_ms: float = RETRY_DELAY_MS) -> None:
        """Set the options from `request_router_kwargs`.

        Raises
        ------
        InvalidInputError
            The delay is not at least 0.
        """
        check_at_least(0, "retry_delay_ms", retry_delay_ms)
        self._retry_delay_s = 1e-3 * retry_delay_ms

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Return one replica to try. Ray calls this again if that replica is full."""
        context = pending_request and pending_request.routing_context
        full: ReplicaID | None = getattr(context, "tried_replica_id", None)
        if full is not None:
            await asyncio.sleep(self._retry_delay_s)
        others = [replica for replica in candidate_replicas if replica.replica_id != full]
        if not (others or candidate_replicas):
            return []
        chosen = random.choice(others or candidate_replicas)
        if context is not None:
            context.tried_replica_id = chosen.replica_id
        return [[chosen]]

    async def _backoff(self, attempt: int) -> None:
        """Skip Ray's growing delay; `choose_replicas` waits for a constant one instead."""
