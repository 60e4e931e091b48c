"""The device of a model, as its service sees it: batch placement and hang detection."""

import time
from collections.abc import Collection

from deployments.batcher.asyncio_batcher import Batcher
from deployments.batcher.placement import BatchPlacement, longest_on_loop_ms
from deployments.config.replica_args import ModelConfig
from policy.profile import Profile

#: The device is stuck if one batch takes longer than this, and than this many full batches.
STUCK_AFTER_S = 10.0
STUCK_AFTER_BATCHES = 20
#: The same for the first batch of a size that a model compiles for.
COMPILING_AFTER_S = 300.0


class ModelDevice:
    """The device that a model computes on.

    `measured_cpus` are those with which the model's profile was measured; None if unknown. A model
    `computes_here` if its batches take the CPUs of this process. `not_run` are the batch sizes that
    it compiles for and that have not run yet.
    """

    def __init__(
        self,
        config: ModelConfig,
        measured_cpus: float | None,
        cpus: float = 1.0,
        *,
        computes_here: bool = True,
        not_run: Collection[int] = (),
    ) -> None:
        self.cpus = cpus
        self.placement = BatchPlacement()
        self._measured_cpus = measured_cpus
        self._computes_here = computes_here
        self._hang_after_s = config.expert.hang_after_s
        self._not_run = set(not_run)

    @property
    def cpus_note(self) -> str | None:
        """Return a note if the profile was measured with another number of CPUs."""
        measured = self._measured_cpus
        if not self._computes_here or measured is None or measured == self.cpus:
            return None
        return (
            f"the profile was measured with {measured:g} CPUs, but this replica has {self.cpus:g}; "
            "measure it anew with as many"
        )

    def shares_cpu(self, max_batch_size: int) -> bool:
        """Return whether all batches are computed on the event loop's CPU."""
        if not self._computes_here:
            return False
        return self.cpus <= 1 or self.placement.largest >= max_batch_size

    def place_batches(self, profile: Profile, response_time_ms: float) -> None:
        """Choose the batch sizes that run on the event loop."""
        if self._computes_here:
            self.placement.use(
                profile.latency_ms.tolist(),
                longest_on_loop_ms(self.cpus, response_time_ms),
                time.monotonic(),
            )

    def ran(self, sizes: Collection[int]) -> None:
        self._not_run.difference_update(sizes)

    def is_stuck(self, batcher: Batcher, profile: Profile) -> bool:
        """Return whether the device is lost or hangs: one batch takes far too long."""
        if batcher.lost_reason is not None:
            return True
        compiles = batcher.size_on_device in self._not_run
        return batcher.busy_for_s() > self._limit_s(profile, compiles=compiles)

    def longest_batch_s(self, profile: Profile) -> float:
        """Return the longest possible time of a batch, compilation included."""
        return self._limit_s(profile, compiles=bool(self._not_run))

    def _limit_s(self, profile: Profile, *, compiles: bool) -> float:
        limit_s = self._hang_after_s
        if limit_s is None:
            limit_s = max(STUCK_AFTER_S, STUCK_AFTER_BATCHES * 1e-3 * float(profile.latency_ms[-1]))
        return max(limit_s, COMPILING_AFTER_S) if compiles else limit_s
