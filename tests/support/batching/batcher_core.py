"""Batcher cores under a fixed policy, for tests on virtual time."""

import math

from policy.batcher.core import BatcherCore
from policy.batcher.limits import Limits
from policy.batcher.requests import Batch, FixedPolicy
from policy.batching_policy import BatchingPolicy


def make_core(
    control_limit: int = 1,
    max_batch_size: int = 4,
    max_wait_ms: float | None = None,
    max_age_ms: float = 1000.0,
    max_queue_rows: int = 100,
    batch_ms: float = 10.0,
    head_start_ms: float = 0.0,
    admit_within_ms: float = math.inf,
) -> BatcherCore:
    """Return a core whose batches of any size are expected to take `batch_ms`."""
    policy = BatchingPolicy.from_control_limit(control_limit, max_batch_size, max_wait_ms)
    latency_ms = [batch_ms] * max_batch_size
    limits = Limits(max_age_ms, max_queue_rows, latency_ms, head_start_ms, admit_within_ms)
    return BatcherCore(FixedPolicy(policy), limits)


def contents(batch: Batch | None) -> list[object]:
    """Return the contents of the requests in a batch, a slice each."""
    assert batch is not None
    return [part.request.content for part in batch.slices]
