"""A request that the service has accepted: how it is given up, and what is counted of it."""

from collections.abc import Callable

from deployments.batcher.submission import Outcome, Submission
from deployments.errors import RequestError
from deployments.serving.request_counts import RequestCounts


class InferenceCall:
    """A request that `BatchedService.infer_nowait` accepted.

    Parameters
    ----------
    counts : RequestCounts
        Count it if it gets no outputs.
    rows : int
    arrival_s : float
        When it reached this process, by `time.monotonic`.
    deadline_ms : float
        Its own deadline, from its arrival.
    on_done : callable
        Called with the outcome.

    Attributes
    ----------
    submission : Submission
        The request in the batcher.
    """

    __slots__ = ("_arrival_s", "_counts", "_deadline_ms", "_on_done", "_rows", "submission")

    def __init__(
        self,
        counts: RequestCounts,
        rows: int,
        arrival_s: float,
        deadline_ms: float,
        on_done: Callable[[Outcome], None],
    ) -> None:
        self.submission: Submission
        self._counts = counts
        self._rows = rows
        self._arrival_s = arrival_s
        self._deadline_ms = deadline_ms
        self._on_done = on_done

    def cancel(self) -> None:
        """Give the request up, for instance because its client left; no-op once it is answered."""
        if not self.submission.done:
            self.submission.cancel()
            self._counts.client_left(self._rows, self._arrival_s)

    def finish(self, outcome: Outcome) -> None:
        """Hand the outcome over; an error is counted. Outputs are, once they are encoded."""
        if isinstance(outcome, RequestError):
            self._counts.failed(outcome, self._rows, self._arrival_s, self._deadline_ms)
        self._on_done(outcome)
