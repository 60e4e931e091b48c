"""When a device counts as lost: one batch takes far too long."""

from collections.abc import Collection

from deployments.config.replica_args import ModelConfig

#: The device is stuck if one batch takes longer than this, and than this many full batches.
STUCK_AFTER_S = 10.0
STUCK_AFTER_BATCHES = 20
#: The same for the first batch of a size that a model compiles for.
COMPILING_AFTER_S = 300.0


class HangLimits:
    """How long a batch may take before its device counts as stuck.

    `not_run` are the batch sizes that the model compiles for and that have not run yet.
    """

    def __init__(self, config: ModelConfig, not_run: Collection[int] = ()) -> None:
        self._config = config
        self._not_run = set(not_run)

    def ran(self, sizes: Collection[int]) -> None:
        self._not_run.difference_update(sizes)

    def limit_s(self, full_batch_ms: float, size: int) -> float:
        """Return how long a batch of `size` rows may take, where a full one takes so long."""
        usual_s = self._usual_s(full_batch_ms)
        return max(usual_s, COMPILING_AFTER_S) if size in self._not_run else usual_s

    def longest_s(self, full_batch_ms: float) -> float:
        """Return how long any batch may take, those included that the model compiles for."""
        usual_s = self._usual_s(full_batch_ms)
        return max(usual_s, COMPILING_AFTER_S) if self._not_run else usual_s

    def _usual_s(self, full_batch_ms: float) -> float:
        if self._config.expert.hang_after_s is not None:
            return self._config.expert.hang_after_s
        return max(STUCK_AFTER_S, STUCK_AFTER_BATCHES * 1e-3 * full_batch_ms)
