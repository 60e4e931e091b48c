"""What a replica does with requests that were on others when those died."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from deployments.batcher import crash_journal
from deployments.batcher.asyncio_batcher import Batcher
from deployments.batcher.crash_journal import CrashJournal, digest_of
from deployments.batcher.placement import BatchPlacement
from deployments.errors import BusyError, DeviceError, ReplicaDiedError
from deployments.models.base import Model, TensorSpec
from policy.batcher.core import BatcherCore
from policy.batcher.limits import Limits
from policy.batcher.requests import FixedPolicy, Request, StartReason
from policy.batching_policy import BatchingPolicy
from tests.support.batching.batcher_core import make_core
from tests.support.batching.batcher_requests import submit
from tests.support.batching.journal_peer import Peer
from tests.support.waiting import LIMIT_S

Arrays = Mapping[str, NDArray[Any]]
BATCH = 8


class Squares(Model):
    """Square `x`, once the gate is open, and note the batches."""

    inputs = (TensorSpec("x", "FP64", ()),)
    outputs = (TensorSpec("y", "FP64", ()),)

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.batches: list[list[float]] = []

    def load(self, device: str) -> None: ...

    def forward(self, batch: Arrays) -> Arrays:
        assert self.gate.wait(LIMIT_S)
        self.batches.append(batch["x"].tolist())
        return {"y": np.square(batch["x"])}


class SquaresOnce(Squares):
    """The same, but no request may be computed twice."""

    idempotent = False


@pytest.fixture(autouse=True)
def silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers of the test are silent for seconds on a busy machine."""
    monkeypatch.setattr(crash_journal, "SILENT_S", 50.0)


@asynccontextmanager
async def replica(model: Squares, directory: Path) -> AsyncIterator[Batcher]:
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


async def ask(batcher: Batcher, *values: float) -> list[Any]:
    """Return the outcomes of requests of one row each, sent at once."""
    return await asyncio.gather(
        *(submit(batcher, {"x": np.array([value])}, 1, time.monotonic()) for value in values),
        return_exceptions=True,
    )


def digests(*values: float) -> str:
    return " ".join(str(digest_of({"x": np.array([value])})) for value in values)


def one_that_dies(directory: Path, *values: float) -> None:
    """Have a replica die on a batch of `values`, after a look at the deaths before it."""
    peer = Peer(directory)
    peer.tell("look")
    peer.tell(f"begin {digests(*values)}")
    peer.die()


async def test_the_requests_of_a_death_run_alone_and_all_others_as_before(tmp_path: Path) -> None:
    directory, model = tmp_path / "journals", Squares()
    one_that_dies(directory, 2, 3)
    async with replica(model, directory) as batcher:
        answers = await ask(batcher, 1, 2, 3, 4, 5, 6, 7, 8)
        assert [answer["y"].item() for answer in answers] == [1, 4, 9, 16, 25, 36, 49, 64]
        assert sorted(model.batches, key=len) == [[2.0], [3.0], [1, 4, 5, 6, 7, 8]]
        model.batches.clear()
        # Both were answered, which clears them.
        await ask(batcher, 1, 2, 3, 4, 5, 6, 7, 8)
        assert model.batches == [[1, 2, 3, 4, 5, 6, 7, 8]]


async def test_what_hangs_one_replica_is_computed_alone_by_the_next(tmp_path: Path) -> None:
    """It joined a batch of 31, and both replicas hung."""
    directory, model = tmp_path / "journals", Squares()
    hung, third = Peer(directory), Peer(directory)
    async with replica(model, directory) as batcher:
        hung.tell(f"hang {digests(2, 3)}")
        answers = await ask(batcher, 1, 2, 3, 4, 5, 6, 7, 8)
        assert [answer["y"].item() for answer in answers] == [1, 4, 9, 16, 25, 36, 49, 64]
        assert sorted(model.batches, key=len) == [[2.0], [3.0], [1, 4, 5, 6, 7, 8]]
    hung.die()
    third.die()


async def test_the_last_replica_that_works_refuses_what_hangs_another(tmp_path: Path) -> None:
    directory, model = tmp_path / "journals", Squares()
    hung = Peer(directory)
    async with replica(model, directory) as batcher:
        await ask(batcher, 9)
        hung.tell(f"hang {digests(2, 3, 9)}")
        outcomes = await ask(batcher, 1, 2, 3, 4, 5, 6, 7, 9)
        assert [type(outcome) for outcome in outcomes[1:3]] == [BusyError] * 2
        # It has answered 9 before, so that is harmless.
        assert sorted(model.batches) == [[1, 4, 5, 6, 7], [9], [9]]
    hung.die()


async def test_a_request_that_has_seen_two_deaths_is_not_computed(tmp_path: Path) -> None:
    directory, model = tmp_path / "journals", Squares()
    one_that_dies(directory, 2, 3)
    one_that_dies(directory, 2)
    async with replica(model, directory) as batcher:
        outcomes = await ask(batcher, 1, 2, 3, 4, 5, 6, 7, 8)
        assert isinstance(outcomes.pop(1), ReplicaDiedError)
        assert [outcome["y"].item() for outcome in outcomes] == [1, 9, 16, 25, 36, 49, 64]
        assert all(2 not in batch for batch in model.batches)


async def test_what_may_not_be_computed_twice_is_answered_after_one_death(tmp_path: Path) -> None:
    directory, model = tmp_path / "journals", SquaresOnce()
    one_that_dies(directory, 2, 3)
    async with replica(model, directory) as batcher:
        outcomes = await ask(batcher, 1, 2, 3, 4)
        assert [type(outcome) for outcome in outcomes[1:3]] == [ReplicaDiedError] * 2
        assert model.batches == [[1, 4]]


async def test_equal_requests_are_cleared_together(tmp_path: Path) -> None:
    """A replica died on twenty equal requests: the next ran each alone, and answered most late."""
    directory, model = tmp_path / "journals", Squares()
    one_that_dies(directory, 2, 2, 2, 3)
    async with replica(model, directory) as batcher:
        answers = await ask(batcher, 2, 2, 2, 2, 2, 3, 7, 8)
        assert [answer["y"].item() for answer in answers] == [4, 4, 4, 4, 4, 9, 49, 64]
        assert sorted(model.batches, key=len) == [[2], [3], [2, 2, 2, 2, 7, 8]]


async def test_as_many_equal_requests_are_answered_500_as_were_lost(tmp_path: Path) -> None:
    """Those that came later got errors for ten minutes, though none had been computed before."""
    directory, model = tmp_path / "journals", SquaresOnce()
    one_that_dies(directory, 2, 2)
    async with replica(model, directory) as batcher:
        outcomes = await ask(batcher, 2, 2, 2, 2)
        assert [type(outcome) for outcome in outcomes[:2]] == [ReplicaDiedError] * 2
        assert model.batches == [[2, 2]]


async def test_a_death_is_noticed_while_the_replica_runs(tmp_path: Path) -> None:
    directory, model = tmp_path / "journals", Squares()
    async with replica(model, directory) as batcher:
        peer = Peer(directory)
        batcher.refresh()
        peer.tell(f"begin {digests(2)}")
        await ask(batcher, 1, 2)
        peer.die()
        await ask(batcher, 1, 2)
    assert model.batches == [[1, 2], [2], [1]]


@pytest.mark.parametrize("model_class", [Squares, SquaresOnce])
async def test_a_lost_device_sends_on_what_waited_and_tells_of_what_ran(
    tmp_path: Path, model_class: type[Squares]
) -> None:
    """Requests that were on the device may go elsewhere once, or not at all."""
    directory, hangs, works = tmp_path / "journals", model_class(), model_class()
    hangs.gate.clear()
    async with replica(hangs, directory) as batcher:
        asked = asyncio.ensure_future(ask(batcher, *range(1, BATCH + 1), 9))
        while not batcher.core.device_busy:
            await asyncio.sleep(0)
        batcher.lose_device("the device hangs")
        outcomes = await asked
        ran = DeviceError if model_class.idempotent else ReplicaDiedError
        assert [type(outcome) for outcome in outcomes] == [ran] * BATCH + [DeviceError]
    one_that_dies(directory, 1)
    async with replica(works, directory) as batcher:
        outcomes = await ask(batcher, 1, 2, 9)
        assert isinstance(outcomes[0], ReplicaDiedError)
        assert isinstance(outcomes[1], ReplicaDiedError) != model_class.idempotent
        assert outcomes[2]["y"].item() == 81


async def test_the_second_device_that_a_request_hangs_answers_it(tmp_path: Path) -> None:
    directory, model = tmp_path / "journals", Squares()
    one_that_dies(directory, 1)
    model.gate.clear()
    async with replica(model, directory) as batcher:
        asked = asyncio.ensure_future(ask(batcher, 1))
        while not batcher.core.device_busy:
            await asyncio.sleep(0)
        batcher.lose_device("the device hangs")
        (outcome,) = await asked
        assert isinstance(outcome, ReplicaDiedError)


def with_content(contents: set[int]) -> Callable[[Request], bool]:
    return lambda request: request.content in contents


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=20),
    st.sets(st.integers(0, 19)),
    st.sets(st.integers(0, 19)),
    st.integers(1, 20),
)
def test_recalled_requests_run_alone_and_nothing_is_lost(
    rows: list[int], suspects: set[int], culprits: set[int], inputs: int
) -> None:
    """Requests `suspects` are recalled from each batch, unless alone; `culprits` fail theirs.

    Of so many different inputs, those that were served are cleared.
    """
    core = make_core(max_batch_size=4)
    for number, count in enumerate(rows):
        core.arrive(0.0, Request(0.0, count, number))
    served: dict[int, int] = dict.fromkeys(range(len(rows)), 0)
    failed = set()
    for _ in range(100 * sum(rows)):
        batch = core.next_batch(0.0)
        if batch is None:
            break
        contents = [part.request.content for part in batch.slices]
        alone = [place for place, content in enumerate(contents) if content in suspects]
        if alone and len(contents) > 1:
            core.recall(batch, alone)
        elif culprits & set(contents):
            for place in core.device_failed(batch):
                failed.add(contents[place])
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
    assert all(served[number] == rows[number] for number in served if number not in culprits)
