import asyncio
import time
from collections import Counter
from contextlib import asynccontextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.batcher.asyncio_batcher import Batcher
from deployments.batcher.crash_journal import CrashJournal, digest_of
from deployments.batcher.placement import BatchPlacement
from deployments.errors import BusyError, DeviceError, ReplicaDiedError
from policy.batcher.core import BatcherCore
from policy.batcher.limits import Limits
from policy.batcher.requests import FixedPolicy, Request, StartReason
from policy.batching_policy import BatchingPolicy
from tests.support.batching.batcher_core import make_core
from tests.support.batching.journal_peer import Peer
from tests.support.batching.squares import Squares, squares_of
from tests.support.waiting import until

BATCH = 8


class SquaresOnce(Squares):
    """The same, but no request may be computed twice."""

    idempotent = False


@asynccontextmanager
async def replica(model: Squares, directory):
    """A replica that starts a batch as soon as `BATCH` rows wait, and runs it on the loop."""
    policy = BatchingPolicy.from_control_limit(BATCH, BATCH, 5.0)
    core = BatcherCore(FixedPolicy(policy), Limits(10_000.0, 1000, [1.0] * BATCH))
    placement = BatchPlacement()
    if model.gate.is_set():
        placement.use([0.0] * BATCH, limit_ms=1e6, now_s=time.monotonic())
    batcher = Batcher(model, core, placement=placement, journal=CrashJournal(directory))
    try:
        yield batcher
    finally:
        model.gate.set()
        batcher.close()


async def ask(batcher: Batcher, *values):
    """Return the answer to each of these requests, or the type of its error."""
    ends = await squares_of(batcher, *([value] for value in values))
    return [end[0] if isinstance(end, list) else type(end) for end in ends]


def digests(*values):
    return " ".join(str(digest_of({"x": np.array([float(value)])})) for value in values)


def one_that_dies(directory, *values):
    """Have a replica die on a batch of `values`, after a look at the deaths before it."""
    peer = Peer(directory)
    peer.tell("look")
    peer.tell(f"begin {digests(*values)}")
    peer.die()


@pytest.mark.parametrize("word", ["begin", "hang"])
async def test_what_a_replica_was_lost_on_runs_alone_and_all_else_as_before(directory, word):
    """What hung one joined a batch of 31, and both replicas hung."""
    model = Squares()
    peer, third = Peer(directory), Peer(directory)
    async with replica(model, directory) as batcher:
        peer.tell(f"{word} {digests(2, 3)}")
        if word == "begin":
            peer.die()
        assert await ask(batcher, *range(1, 9)) == [1, 4, 9, 16, 25, 36, 49, 64]
        assert sorted(model.batches, key=len) == [[2], [3], [1, 4, 5, 6, 7, 8]]
        model.batches.clear()
        # Both were answered, which clears them.
        await ask(batcher, *range(1, 9))
        assert model.batches == [[1, 2, 3, 4, 5, 6, 7, 8]]
    for one in (peer, third):
        one.die()


async def test_the_last_replica_that_works_refuses_what_hangs_another(directory):
    model = Squares()
    hung = Peer(directory)
    async with replica(model, directory) as batcher:
        await ask(batcher, 9)
        hung.tell(f"hang {digests(2, 3, 9)}")
        ends = await ask(batcher, 1, 2, 3, 4, 5, 6, 7, 9)
        # It has answered 9 before, so that is harmless.
        assert ends == [1, BusyError, BusyError, 16, 25, 36, 49, 81]
        assert sorted(model.batches) == [[1, 4, 5, 6, 7], [9], [9]]
    hung.die()


async def test_a_request_that_has_seen_two_deaths_is_not_computed(directory):
    model = Squares()
    one_that_dies(directory, 2, 3)
    one_that_dies(directory, 2)
    async with replica(model, directory) as batcher:
        assert await ask(batcher, 1, 2, 3, 4) == [1, ReplicaDiedError, 9, 16]
    assert all(2 not in batch for batch in model.batches)


async def test_what_may_not_be_computed_twice_is_answered_after_one_death(directory):
    """As many equal requests as were lost: later ones got errors for ten minutes, though new."""
    model = SquaresOnce()
    one_that_dies(directory, 2, 2, 3)
    async with replica(model, directory) as batcher:
        died = ReplicaDiedError
        assert await ask(batcher, 1, 2, 2, 2, 3, 4) == [1, died, died, 4, died, 16]
    assert model.batches == [[1, 2, 4]]


async def loses_its_device(model: Squares, directory, *values):
    """Return the ends of these requests on a device that hangs."""
    model.gate.clear()
    async with replica(model, directory) as batcher:
        asked = asyncio.ensure_future(ask(batcher, *values))
        await until(lambda: batcher.core.device_busy)
        batcher.lose_device("the device hangs")
        return await asked


@pytest.mark.parametrize("model_class", [Squares, SquaresOnce])
async def test_a_lost_device_sends_on_what_waited_and_tells_of_what_ran(directory, model_class):
    """Requests that were on the device may go elsewhere once, or not at all."""
    ends = await loses_its_device(model_class(), directory, *range(1, BATCH + 1), 9)
    ran = DeviceError if model_class.idempotent else ReplicaDiedError
    assert ends == [ran] * BATCH + [DeviceError]
    one_that_dies(directory, 1)
    async with replica(model_class(), directory) as batcher:
        second = 4 if model_class.idempotent else ReplicaDiedError
        assert await ask(batcher, 1, 2, 9) == [ReplicaDiedError, second, 81]


async def test_the_second_device_that_a_request_hangs_answers_it(directory):
    one_that_dies(directory, 1)
    assert await loses_its_device(Squares(), directory, 1) == [ReplicaDiedError]


def with_content(contents):
    return lambda request: request.content in contents


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=20),
    st.sets(st.integers(0, 19)),
    st.sets(st.integers(0, 19)),
    st.integers(1, 20),
)
def test_recalled_requests_run_alone_and_nothing_is_lost(rows, suspects, culprits, inputs):
    """Requests `suspects` are recalled from each batch, unless alone; `culprits` fail theirs.

    Of so many different inputs, those that were served are cleared.
    """
    core = make_core(max_batch_size=4)
    for number, count in enumerate(rows):
        core.arrive(0.0, Request(0.0, count, number))
    served, failed = Counter[int](), set()
    while (batch := core.next_batch(0.0)) is not None:
        contents = [part.request.content for part in batch.slices]
        alone = [place for place, content in enumerate(contents) if content in suspects]
        if alone and len(contents) > 1:
            core.recall(batch, alone)
        elif culprits & set(contents):
            failed |= {contents[place] for place in core.device_failed(batch)}
        else:
            assert not alone or batch.reason is StartReason.SEARCH or len(contents) == 1
            core.device_free()
            for part in batch.slices:
                served[part.request.content] += part.rows
                equal = set(range(part.request.content % inputs, 20, inputs))
                suspects = suspects - equal
                core.release(with_content(equal))
    assert core.queue_length == 0
    assert failed == culprits & set(range(len(rows)))
    assert all(
        served[number] == rows[number] for number in range(len(rows)) if number not in failed
    )
