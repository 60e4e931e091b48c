"""Run a batch on the event loop's own thread, and watch that it is short."""

import logging
import resource
import time

from deployments.batcher.model_runner import BatchRun, ModelRunner
from deployments.batcher.placement import BatchPlacement
from policy.batcher.requests import Batch

logger = logging.getLogger("sojourn.batcher")


def run_on_loop(runner: ModelRunner, placement: BatchPlacement, batch: Batch) -> BatchRun:
    """Run a batch on this thread, and let the placement know how that went.

    Raises
    ------
    DeviceLostError
        The device can answer no batch any more.
    """
    switches = _voluntary_switches()
    run = runner.run(batch)
    goes_back = placement.observe(
        batch.size,
        run.duration_s,
        run.cpu_s,
        waited=_voluntary_switches() > switches,
        now_s=time.monotonic(),
    )
    if goes_back:
        logger.warning(
            "a batch of %d kept the event loop for %.1f ms; such batches go to the device thread",
            batch.size,
            1e3 * run.duration_s,
        )
    return run


def _voluntary_switches() -> int:
    """Return how often this thread has waited for something, and so given up its CPU."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
