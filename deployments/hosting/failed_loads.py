"""Failed loads: they are retried after a pause, not at every request."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from deployments.config.replica_args import ModelConfig
from deployments.modelstore.errors import StoreFullError

#: Pause before a retry.
PAUSE_S = 30.0


@dataclass
class _Failure:
    """The last failure of a model; `again_s` is infinite during a retry."""

    wanted: ModelConfig
    error: Exception
    again_s: float


class FailedLoads:
    """The last failure of each model that could not be loaded; `clock` returns s."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: dict[str, _Failure] = {}

    def __contains__(self, wanted: ModelConfig) -> bool:
        return self._of(wanted) is not None

    def note(self, wanted: ModelConfig, error: Exception) -> None:
        """Record a failed load; callers that shared it may all report it."""
        self._failures[wanted.name] = _Failure(wanted, error, self._clock() + PAUSE_S)

    def forget(self, wanted: ModelConfig) -> None:
        """Record that a version was loaded."""
        if wanted in self:
            del self._failures[wanted.name]

    def forgive(self) -> None:
        """Allow immediate retries, because the configuration has changed."""
        for failure in self._failures.values():
            failure.again_s = self._clock()

    def take_due(self, wanted: ModelConfig) -> bool:
        """Return whether the caller should retry a failed load now."""
        failure = self._of(wanted)
        if failure is None or self._clock() < failure.again_s:
            return False
        failure.again_s = float("inf")
        return True

    def raise_if_early(self, wanted: ModelConfig) -> None:
        """Raise the error of a failed load if it is too early for a retry.

        A full store fails fast, and has room as soon as another model is idle, so it is always
        retried.
        """
        failure = self._of(wanted)
        if (
            failure is not None
            and self._clock() < failure.again_s
            and not isinstance(failure.error, StoreFullError)
        ):
            raise failure.error.with_traceback(None)

    def _of(self, wanted: ModelConfig) -> _Failure | None:
        failure = self._failures.get(wanted.name)
        return failure if failure is not None and failure.wanted == wanted else None
