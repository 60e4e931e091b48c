"""RAND for handle calls between deployments: a request router class of Ray Serve.

HAProxy does the same for HTTP (`deployments.routing`). In a deployment's part of the config file::

    request_router_config:
      request_router_class: deployments.rand_router:RandRequestRouter
      request_router_kwargs: {retry_delay_ms: 10}

Without this, Serve's own router takes the less busy of two replicas, and when both are full waits
25 ms, then 50, up to half a second: too long for most SLAs. A replica is full when it has
`max_ongoing_requests` in hand.
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

from policy.errors import InvalidInputError

#: RAND's Δ unless the config gives another: about what a try costs.
RETRY_DELAY_MS = 5.0


class RandRequestRouter(FIFOMixin, RequestRouter):  # type: ignore[misc]
    """Sends a request to a random replica; is that full, to another random one after a delay Δ."""

    def initialize_state(self, retry_delay_ms: float = RETRY_DELAY_MS) -> None:
        """Take `request_router_kwargs`.

        Raises
        ------
        InvalidInputError
            The delay is negative.
        """
        if not retry_delay_ms >= 0:
            raise InvalidInputError(f"retry_delay_ms: must be at least 0, not {retry_delay_ms}")
        self._retry_delay_s = 1e-3 * retry_delay_ms

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Give one replica to try; Ray asks again when that is full."""
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
        """Leave Ray's growing delay out: `choose_replicas` waits, always for as long."""
