"""Which requests of a batch may run, by what is known of replicas that died.

Sent on by HAProxy, a request that has seen one death runs alone, so that it takes no other with it
and is cleared if it is innocent. One that has seen two is answered 500. A model that is not
idempotent gets no second try at all. Silence during a batch counts as a death; the last replica
that works refuses what was in it, but for what it has answered itself before.

Requests are known by their inputs. So equal ones are cleared together, and of a model that is not
idempotent, as many are answered 500 as were lost: those that come later are new.
"""

import asyncio

from deployments.batcher.crash_journal import BEAT_S, MAX_DEATHS, CrashJournal
from deployments.batcher.queued_request import QueuedRequest, queued
from deployments.errors import BusyError, DeviceError, ReplicaDiedError, RequestError
from policy.batcher.core import BatcherCore
from policy.batcher.requests import Batch, Request

#: So many different inputs are remembered as harmless.
_ANSWERED = 4096
_HUNG = "another replica hangs on this request, and no third one is known; try again later"


class DeathGuard:
    """Check each batch before it starts, and record it for the replicas that survive it.

    Without a journal, this process knows only of its own device.
    """

    def __init__(
        self, core: BatcherCore, journal: CrashJournal | None, *, idempotent: bool
    ) -> None:
        self._core = core
        self._journal = journal
        self._idempotent = idempotent
        self._max_deaths = MAX_DEATHS if idempotent else 1
        #: The digests of requests that were answered here, the first ones first.
        self._answered: dict[int, None] = {}
        self._loop = asyncio.get_running_loop()
        self._beat()

    def next_batch(self, now_s: float) -> Batch | None:
        """Return the core's next batch that may run, and note that it runs.

        A request that is not computed again gets its error.
        """
        batch = self._core.next_batch(now_s)
        journal = self._journal
        if journal is None or batch is None:
            return batch
        journal.look()
        while batch is not None and journal.deaths:
            alone = []
            recalled = False
            for place, part in enumerate(batch.slices):
                deaths = journal.deaths.get(queued(part.request).digest, 0)
                if deaths >= self._max_deaths:
                    queued(part.request).finish(self._error(deaths))
                    if not self._idempotent:
                        journal.answered_lost(queued(part.request).digest)
                    self._core.cancel(part.request)
                    recalled = True
                elif self._may_hang_the_last(queued(part.request).digest):
                    queued(part.request).finish(BusyError(_HUNG, "suspected"))
                    self._core.cancel(part.request)
                    recalled = True
                elif deaths:
                    alone.append(place)
            if not recalled and (not alone or len(batch.slices) == 1):
                break
            self._core.recall(batch, alone)
            batch = self._core.next_batch(now_s)
        if batch is not None:
            journal.begin([queued(part.request).digest for part in batch.slices])
        return batch

    def _beat(self) -> None:
        if self._journal is not None:
            self._journal.beat()
            self._loop.call_later(BEAT_S, self._beat)

    def _may_hang_the_last(self, digest: int) -> bool:
        journal = self._journal
        assert journal is not None
        return digest in journal.hung and digest not in self._answered and journal.is_last

    def batch_ended(self) -> None:
        if self._journal is not None:
            self._journal.end()

    def answered(self, submission: QueuedRequest) -> None:
        """Record that a request was computed, and clear it and its equals of the death."""
        if self._journal is None:
            return
        digest = submission.digest
        self._answered[digest] = None
        if len(self._answered) > _ANSWERED:
            del self._answered[next(iter(self._answered))]
        if digest in self._journal.deaths:
            self._journal.clear(digest)
            self._core.release(lambda other: queued(other).digest == digest)

    def device_lost(self, request: Request, reason: str) -> RequestError:
        """Return the answer to a request of the batch on a device that is lost.

        Whoever computes it next knows that it has been in this batch.
        """
        deaths = 1
        if self._journal is not None:
            self._journal.device_lost()
            deaths += self._journal.deaths.get(queued(request).digest, 0)
        return self._error(deaths) if deaths >= self._max_deaths else DeviceError(reason)

    def refresh(self) -> None:
        if self._journal is not None:
            self._journal.refresh()

    def close(self) -> None:
        """Leave nothing behind but what was on the device."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _error(self, deaths: int) -> ReplicaDiedError:
        if self._idempotent:
            return ReplicaDiedError(
                f"{deaths} replicas were lost while they computed this request; "
                "it is not computed again"
            )
        return ReplicaDiedError(
            "a replica was lost while it computed this request, which may not be computed twice"
        )
