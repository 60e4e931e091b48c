"""What a pipeline asks of the workers of a stage, and what it is told."""

from typing import Protocol

from deployments.pipelines.items import Outcome, StageBatch


class Listener(Protocol):
    """Told of the events at a stage's workers, always on the event loop."""

    def batch_ended(self, batch: StageBatch, outcome: Outcome) -> None:
        """Take the outcome of a batch that was started."""

    def workers_changed(self, workers: int, problem: str | None, taken: int = 0) -> None:
        """Take the number of workers that can run batches.

        With none left, `problem` says why none can be started, or is None while one starts. So many
        of them as are `taken` run batches of another pipeline now.
        """


class Workers(Protocol):
    """The workers of one stage."""

    async def start(self) -> None:
        """Start all workers; return when each can take a batch.

        Raises
        ------
        StartError
            A worker did not start; the message says why.
        """

    def run(self, batch: StageBatch) -> None:
        """Run a batch on a free worker. The caller knows that there is one."""

    def resize(self, count: int) -> None:
        """Start more workers, or let some end after their batches.

        Raises
        ------
        InvalidInputError
            These workers cannot be resized.
        """

    def check(self, now_s: float) -> None:
        """Replace the workers that hang; called about once a second."""

    async def close(self) -> None:
        """End all workers. Batches that they run are given up."""
