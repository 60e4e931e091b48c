"""The rows of batches that failed: some wait again, the others are tested.

A batch that fails contains a culprit. Unless the model names it, it is found by binary splitting
(`policy.batcher.bisection`): half of the suspects go into the next batch, which is filled up
from the queue, so that a test that passes costs nothing. If it fails, the untested half is cleared
and returns to the head of the queue, together with the rows that filled the batch. A request fails
only if it fails alone. One test runs at a time, whatever the number of devices. After a test that
failed, or that took no rows of the queue along, comes an ordinary batch, if one is due.
"""

from collections.abc import Callable, Collection, Hashable, Sequence

from policy.batcher.bisection import BatchBisection
from policy.batcher.limits import Limits
from policy.batcher.request_queue import RequestQueue
from policy.batcher.requests import Batch, Request, Slice, StartReason


class FailedBatches:
    """Divides the rows of failed batches between the queue and the search for the culprit.

    Each slice is in at most 2·log₂(largest batch) + 2 batches (5 if batches hold two rows), even if
    others fail: after log₂(largest batch) - 1 failures, only tests of the slice itself include it.
    """

    def __init__(self, queue: RequestQueue) -> None:
        self.bisection = BatchBisection()
        #: Whether an ordinary batch that is due goes before the next test: the latest batch was a
        #: test that took no rows of the queue along, or that failed.
        self.queue_is_next = False
        self._testing = False
        self._queue = queue

    @property
    def can_test(self) -> bool:
        """Whether there are suspects, and none of them is on a device."""
        return bool(self.bisection) and not self._testing

    def cancel(self, request: Request) -> None:
        if not request.cancelled:
            request.cancelled = True
            self.bisection.discard(request)
            self._queue.discard(request)

    def test_passed(self) -> None:
        self._testing = False
        self.bisection.test_passed()

    def put_back(
        self, batch: Batch, blamed: Collection[int], largest_batch: int, max_queue_rows: int
    ) -> tuple[list[int], list[Request]]:
        """Queue the rows of a failed batch again, or group them for tests.

        Returns the indices of the slices whose requests failed, and the suspected requests for
        which there is no room.
        """
        self.queue_is_next = batch.reason is StartReason.SEARCH
        slices = batch.slices
        cleared: list[Slice] = []
        if batch.slices_under_test:
            self._testing = False
            cleared = self.bisection.test_failed()
        if len(slices) == 1:
            blamed = (0,)
        failed = [place for place in range(len(slices)) if place in blamed]
        for place in failed:
            self.cancel(slices[place].request)
        for part in slices:
            part.request.failed_batches += 1
        suspects = 0 if blamed else batch.slices_under_test or len(slices)
        resumed = bool(batch.slices_under_test)
        self.bisection.add(slices[:suspects], has_culprit=True, first=resumed)
        self._requeue([*cleared, *slices[suspects:]], largest_batch)
        crowded_out = self.bisection.crowd_out(max_queue_rows)
        for request in crowded_out:
            self.cancel(request)
        return failed, crowded_out

    def take_test(
        self,
        now_s: float,
        max_rows: int,
        limits: Limits,
        fill_up: Callable[[int, float, Hashable], list[Slice]],
        miss_deadline: Callable[[Request], None],
    ) -> tuple[list[Slice], int]:
        """Return the next slices to test, with their batch filled up from the queue, and how many.

        `fill_up` takes rows off the queue: how many, when they will be done, and of which kind.
        """
        suspects, is_last_suspect = self.bisection.next_test(max_rows)
        size = sum(part.rows for part in suspects)
        kind = suspects[0].request.kind if suspects else None  # they come from one batch
        # The last suspect runs alone: a row that filled up its batch might be the culprit instead.
        if suspects and not is_last_suspect:
            size = max(size, min(max_rows, size + self._queue.rows_of(kind)))
        done_s = now_s + 1e-3 * limits.batch_latency_ms(size)
        oldest_s = done_s - 1e-3 * limits.answer_within_ms
        tested = []
        for part in suspects:
            if part.request.deadline_s < done_s or part.request.arrival_s < oldest_s:
                miss_deadline(part.request)
            else:
                tested.append(part)
        if len(tested) < len(suspects):
            self.bisection.test_incomplete()
        if not tested:
            self.bisection.test_passed()
            return [], 0
        self._testing = True
        self.queue_is_next = is_last_suspect
        size -= sum(part.rows for part in tested)
        return tested + fill_up(size, done_s, kind), len(tested)

    def _requeue(self, slices: Sequence[Slice], largest_batch: int) -> None:
        """Requeue `slices` at the head; test those that failed too often."""
        max_failures = (largest_batch - 1).bit_length() - 1
        rerun: list[Slice] = []
        test: list[Slice] = []
        for part in slices:
            (test if part.request.failed_batches > max_failures else rerun).append(part)
        self._queue.put_back(rerun)
        self.bisection.add(test, has_culprit=False)

    def recall(self, batch: Batch, alone: Collection[int]) -> None:
        if batch.slices_under_test:
            self.bisection.test_incomplete()
            self.test_passed()
        places = range(len(batch.slices))
        under_test = [place for place in places[: batch.slices_under_test] if place not in alone]
        queued = [place for place in places[batch.slices_under_test :] if place not in alone]
        self.bisection.add([batch.slices[place] for place in under_test], has_culprit=False)
        self._queue.put_back([batch.slices[place] for place in queued])
        for place in alone:
            # Like the last suspect of a batch that failed, it shares its test with no one.
            self.bisection.add([batch.slices[place]], has_culprit=True)

    def release(self, cleared: Callable[[Request], bool]) -> None:
        """Release requests that were to run alone, as `BatcherCore.release` does.

        One that was in a batch that failed stays: that it is harmless elsewhere says nothing.
        """
        self._queue.put_back(
            self.bisection.release(lambda one: not one.failed_batches and cleared(one))
        )
