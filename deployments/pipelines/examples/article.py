"""The example of "Service Batching from Scratch, Again": two stages, ten requests at a time.

::

    python -m deployments.pipelines.examples.article
"""

import asyncio
import os

from sojourn import Pipeline, Stage


class Scale:
    """The first stage: each value times two."""

    def predict(self, x: float) -> float:
        """Return the double of one value."""
        return 2 * x


class Shift:
    """The second stage: each value plus three."""

    def predict(self, x: float) -> float:
        """Return one value plus three."""
        return x + 3


async def run() -> list[float]:
    """Return the answers to ten requests that are sent at the same time."""
    cpus = sorted(os.sched_getaffinity(0))
    steps = [Stage(Scale, cpus=[cpus[0], cpus[-1]]), Stage(Shift, cpus=[cpus[0]])]
    async with Pipeline(steps) as pipeline:
        return [*await asyncio.gather(*(pipeline.predict(value) for value in range(10)))]


if __name__ == "__main__":
    print(asyncio.run(run()))  # noqa: T201 - this is an example
