"""The device of a model, as its service sees it: batch placement and hang detection."""

import time
from collections.abc import Collection

from deployments.batcher.asyncio_batcher import Batcher
from deployments.batcher.placement import BatchPlacement, longest_on_loop_ms
from deployments.config.replica_args import ModelConfig
from deployments.serving.device_health import HangLimits
from policy.profile import Profile


class ModelDevice:
    """The device that a model computes on.

    Parameters
    ----------
    config : ModelConfig
        May set when a batch hangs.
    measured_cpus : float or None
        CPUs with which the model's profile was measured; None if unknown.
    computes_here : bool
        Whether batches are computed on the CPUs of this process.
    not_run : collection of int
        Batch sizes that the model compiles for and that have not run yet.

    Attributes
    ----------
    placement : BatchPlacement
        Decides which batches the event loop runs.
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
        self._hang_limits = HangLimits(config, not_run)

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
        """Record that batches of these sizes have run."""
        self._hang_limits.ran(sizes)

    def is_stuck(self, batcher: Batcher, profile: Profile) -> bool:
        """Return whether the device is lost or hangs: one batch takes far too long."""
        if batcher.lost_reason is not None:
            return True
        limit_s = self._hang_limits.limit_s(_full_batch_ms(profile), batcher.size_on_device)
        return batcher.busy_for_s() > limit_s

    def longest_batch_s(self, profile: Profile) -> float:
        """Return the longest possible time of a batch, compilation included."""
        return self._hang_limits.longest_s(_full_batch_ms(profile))


def _full_batch_ms(profile: Profile) -> float:
    return float(profile.latency_ms[-1])
