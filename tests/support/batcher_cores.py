"""Batcher cores for tests on virtual time."""

from dataclasses import dataclass

from deployments.batcher.core import Batch, BatcherCore
from deployments.batcher.limits import Limits
from policy.batching_policy import BatchingPolicy


@dataclass(frozen=True)
class Always:
    """The same policy at every arrival rate."""

    policy: BatchingPolicy

    def lookup(self, arrival_rate_per_s: float) -> BatchingPolicy:
        return self.policy


def make_core(
    control_limit: int = 1,
    max_batch_size: int = 4,
    max_wait_ms: float | None = None,
    max_age_ms: float = 1000.0,
    waiting_room: int = 100,
    batch_ms: float = 10.0,
    head_start_ms: float = 0.0,
) -> BatcherCore:
    """Return a core whose every batch takes `batch_ms`, whatever its size."""
    policy = BatchingPolicy.from_control_limit(control_limit, max_batch_size, max_wait_ms)
    latency_ms = [batch_ms] * max_batch_size
    return BatcherCore(Always(policy), Limits(max_age_ms, waiting_room, latency_ms, head_start_ms))


def names(batch: Batch | None) -> list[object]:
    """Return the contents of the batch's requests, in batch order."""
    assert batch is not None
    return [part.request.content for part in batch.slices]
