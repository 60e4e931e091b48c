import asyncio
import math
import re
import threading
import time
from contextlib import asynccontextmanager
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deployments.batcher.asyncio_batcher import LONGEST_TURN_S, Batcher
from deployments.batcher.model_runner import PROBE_AFTER, BatchRecord
from deployments.batcher.placement import IN_A_ROW, BatchPlacement
from deployments.batcher.queued_request import Outcome
from deployments.errors import (
    BadRequestError,
    BusyError,
    DeadlineError,
    DeviceError,
    ModelError,
)
from deployments.models.base import TensorSpec
from policy.batcher.core import BatcherCore
from policy.batcher.limits import Limits
from policy.batcher.requests import FixedPolicy
from policy.batching_policy import BatchingPolicy
from tests.support.batching.squares import Squares, ask, outcomes, send, squares_of
from tests.support.models.emulated_service import end_device_thread
from tests.support.waiting import until


@pytest.fixture(params=[False, True], ids=["device thread", "event loop"])
def on_loop(request):
    return bool(request.param)


@asynccontextmanager
async def running(
    model: Squares,
    on_loop=False,
    *,
    control_limit=1,
    cap=4,
    wait_ms=None,
    latency_ms=None,
    limits=None,
    **options,
):
    """Run a batcher with these limits (`Limits`) and options (`Batcher`)."""
    placement = BatchPlacement()
    if on_loop:
        placement.use([0.0] * cap, limit_ms=1e6, now_s=time.monotonic())
    policy = BatchingPolicy.from_control_limit(control_limit, cap, wait_ms)
    given = {"max_age_ms": 10_000.0, "max_queue_rows": 100, **(limits or {})}
    core = BatcherCore(FixedPolicy(policy), Limits(latency_ms=latency_ms or [1.0] * cap, **given))
    batcher = Batcher(model, core, placement=placement, **options)
    try:
        yield batcher
    finally:
        model.gate.set()
        batcher.close()


def squares(values):
    return np.square(values).tolist()


@given(
    st.lists(st.lists(st.integers(-1, 15), min_size=1, max_size=9), min_size=1, max_size=8),
    st.integers(1, 5),
    st.booleans(),
)
@example([[-1], [2, 3, 4]], 2, True)  # the first row is answered last
def test_until_a_drain_each_request_without_fault_gets_its_own_answer(requests, cap, on_loop):
    """5 costs its batch a row."""

    async def check():
        model = Squares()
        model.answer = lambda x: np.square(x[x != 5])
        async with running(model, on_loop, control_limit=cap, cap=cap) as batcher:
            asked = [ask(batcher, *values) for values in requests]
            await asyncio.sleep(0)
            await batcher.drain()
            ends = await outcomes(*asked)
            with pytest.raises(BusyError):
                await ask(batcher, 1)
        for values, end in zip(requests, ends, strict=True):
            faults = {-1: ModelError, 5: ModelError, 13: BadRequestError, 14: BadRequestError}
            expected = {faults[value] for value in values if value in faults}
            assert type(end) in expected if expected else end == squares(values)
        assert max(map(len, model.batches)) <= cap

    asyncio.run(check())


async def test_requests_read_in_one_iteration_of_the_event_loop_share_a_batch(on_loop):
    """OpenMP keeps a number of threads for each thread, so the device thread must set its own."""
    model, prepared = Squares(), list[int]()

    def prepare():
        prepared.append(threading.get_ident())

    async with running(model, on_loop, cap=8, prepare_thread=prepare) as batcher:
        for _ in range(2):
            await squares_of(batcher, [0], [1], [2], [3], [4])
    assert model.batches == [[0, 1, 2, 3, 4]] * 2
    assert list(model.threads) == ([threading.get_ident()] if on_loop else prepared)


async def test_a_callback_that_fails_keeps_no_other_request_from_its_answer(on_loop):
    def fail(outcome: Outcome):
        raise ZeroDivisionError

    async with running(Squares(), on_loop, control_limit=2) as batcher:
        send(batcher, [3], fail)
        assert await squares_of(batcher, [4]) == [[16]]


async def test_a_callback_is_not_called_once_its_request_is_given_up():
    model = Squares()
    got: list[Outcome] = []
    model.gate.clear()
    async with running(model) as batcher:
        on_device = send(batcher, [3], got.append)
        await until(lambda: batcher.core.device_busy)
        waiting = send(batcher, [4], got.append)
        for request in (on_device, waiting, waiting):
            request.cancel()
        assert on_device.done
        model.gate.set()
        await batcher.drain()
        assert batcher.rows.cancelled == 2
    assert got == []
    assert model.batches == [[3]]


async def test_requests_that_the_model_blames_fail_and_the_others_need_no_search(on_loop):
    model = Squares()
    async with running(model, on_loop, control_limit=8, cap=8) as batcher:
        ends = await squares_of(batcher, [1, 2], [3, 14], [14], [4, 5, 6])
    assert [str(end) for end in ends[1:3]] == ["14 is not allowed"] * 2
    assert [ends[0], ends[3]] == [[1, 4], [16, 25, 36]]
    assert model.batches == [[1, 2, 3, 14, 14, 4, 5, 6], [1, 2, 4, 5, 6]]


async def test_a_device_given_up_fails_its_batch_and_every_waiting_request_at_once():
    model, records = Squares(), list[BatchRecord]()
    model.gate.clear()
    async with running(model, on_batch=records.append) as batcher:
        on_it = ask(batcher, 1)
        await until(lambda: batcher.core.device_busy)
        waits = ask(batcher, 2)
        await asyncio.sleep(0)
        batcher.lose_device("the device of this replica does not answer")
        assert [type(end) for end in await outcomes(on_it, waits)] == [DeviceError] * 2
        with pytest.raises(DeviceError, match="does not answer"):
            await ask(batcher, 3)
        # If the batch ends after all, its results are discarded and nothing starts.
        model.gate.set()
        await end_device_thread(batcher)
        await batcher.drain()
        assert (batcher.rows.completed, model.batches, records) == (0, [[1]], [])


@pytest.mark.parametrize(
    ("value", "batches"), [(990, 1), (991, PROBE_AFTER + 1)], ids=["ends its thread", "fails"]
)
async def test_a_device_that_fails_on_everything_is_lost_and_no_request_is_blamed(
    value, batches, on_loop
):
    """The last batch is the model's own example."""
    model = Squares()
    async with running(model, on_loop, control_limit=4) as batcher:
        assert await squares_of(batcher, [1, 2, 3, 4]) == [[1, 4, 9, 16]]
        ends = await squares_of(batcher, [1], [2], [value], [4], [5], [6])
        assert {type(end) for end in ends} == {DeviceError}
        assert batcher.lost_reason is not None
    assert len(model.batches) == 1 + batches


async def test_a_device_that_answers_the_example_is_not_lost_however_many_batches_fail(on_loop):
    model = Squares()
    async with running(model, on_loop) as batcher:
        for _ in range(2 * PROBE_AFTER):
            with pytest.raises(ModelError):
                await ask(batcher, -1)
        assert batcher.lost_reason is None
        assert batcher.runner.errors.count == 2 * PROBE_AFTER
    assert model.batches.count([0.0]) == 2


async def test_a_row_that_does_not_fit_its_output_fails_its_own_request_alone(on_loop):
    model = Squares()
    model.answer = lambda x: np.where(x == 5, np.nan, x * x)
    async with running(model, on_loop, control_limit=4) as batcher:
        ends = await squares_of(batcher, [1], [2], [*range(4, 9)])
        await batcher.drain()
        assert ends[:2] == [[1], [4]]
        assert "output 'y' has NaN or infinity" in str(ends[2])
        assert model.batches == [[1, 2, 4, 5]], "nothing is computed twice, or for nobody"
        assert batcher.runner.errors.count == 1


async def test_what_waits_for_an_overdue_batch_is_refused_before_that_ends():
    """It learned of a batch of 5 s after 5 s, while another replica idled."""
    model = Squares()
    model.gate.clear()
    limits = {"admit_within_ms": 390.0, "answer_within_ms": 400.0}
    async with running(model, cap=2, limits=limits) as batcher:
        long = ask(batcher, 1)
        await until(lambda: batcher.core.device_busy)
        with pytest.raises((BusyError, DeadlineError)):
            await ask(batcher, 2)
        assert not long.done()
        model.gate.set()
        await long
    assert model.batches == [[1]]


async def test_no_request_is_refused_while_an_idle_device_is_to_take_those_that_wait(on_loop):
    """Of two clients with large bodies, one was refused: the other's batch was about to start."""
    async with running(Squares(), on_loop, cap=1, limits={"max_queue_rows": 1}) as batcher:
        # All in one iteration of the event loop, as they are submitted.
        assert await squares_of(batcher, [1], [2]) == [[1], [4]]
        assert (batcher.rows.refused, batcher.rows.completed) == (0, 2)


async def test_requests_that_waited_in_their_sockets_share_a_batch(on_loop):
    """A backlog was served one by one, as a full batch would have been too late for its requests.

    So a batch's saving was lost just when it was needed, and the backlog grew.
    """
    model = Squares()
    limits = {"admit_within_ms": 194e3, "answer_within_ms": 200e3, "max_age_ms": 1e6}
    latency_ms = [1500.0 * size for size in range(1, 65)]  # a full batch takes half of the time
    async with running(model, on_loop, cap=64, latency_ms=latency_ms, limits=limits) as batcher:
        arrival_s = time.monotonic() - 120
        await asyncio.gather(*(ask(batcher, n, arrival_s=arrival_s) for n in range(100, 120)))
    assert model.batches == [[*range(100, 120)]]


async def test_a_request_whose_deadline_passes_is_answered_at_once_and_not_computed():
    model = Squares()
    model.gate.clear()
    async with running(model) as batcher:
        first = ask(batcher, 1)
        await until(lambda: batcher.core.device_busy)
        now_s = time.monotonic()
        with pytest.raises(DeadlineError):
            await ask(batcher, 2, deadline_s=now_s + 0.1)
        assert time.monotonic() >= now_s + 0.1
        with pytest.raises(DeadlineError, match="shorter than its own processing time"):
            await ask(batcher, 2, arrival_s=now_s, deadline_s=now_s)
        model.gate.set()
        await first
        assert (batcher.rows.deadline_missed, batcher.rows.refused) == (2, 0)
    assert model.batches == [[1]]


def compute(x):
    end_s = time.thread_time() + 0.03
    while time.thread_time() < end_s:
        pass
    return x


def wait(x):
    threading.Event().wait(3e-3)
    return x


@pytest.mark.parametrize(("answer", "batches"), [(compute, 1), (wait, IN_A_ROW)])
async def test_a_model_that_keeps_the_event_loop_leaves_it(monkeypatch, answer, batches):
    # Where a thread is not woken for so long, the first of its batches is the last there.
    monkeypatch.setattr(BatchPlacement, "LONGEST_WAIT_S", math.inf)
    model, records = Squares(), list[BatchRecord]()
    model.answer = answer
    async with running(model, on_loop=True, on_batch=records.append) as batcher:
        batcher.placement.use([0.0] * 4, limit_ms=1.0, now_s=time.monotonic())
        for value in range(batches + 2):
            await ask(batcher, value)
    assert [record.on_loop for record in records] == [True] * batches + [False] * 2
    if answer is compute:
        assert records[0].cpu_s >= 0.03


@pytest.mark.parametrize(("batches_in_turn", "turns"), [(1, 10), (4, 3), (math.inf, 1)])
async def test_full_batches_follow_each_other_on_the_event_loop_for_a_limited_time(
    batches_in_turn, turns
):
    model = Squares()
    clock_s = 0.0

    def answer(x):
        nonlocal clock_s
        clock_s += LONGEST_TURN_S / batches_in_turn
        in_turn.append(turn)
        return x

    model.answer = answer
    turn, in_turn = 0, list[int]()
    async with running(model, on_loop=True) as batcher:
        with mock.patch("deployments.batcher.asyncio_batcher.time") as clock:
            clock.monotonic = lambda: clock_s
            tasks = [ask(batcher, number) for number in range(100, 140)]
            while not all(task.done() for task in tasks):
                turn += 1
                await asyncio.sleep(0)
    assert len(in_turn) == 10
    assert len(set(in_turn)) == turns


class Words(Squares):
    inputs = (TensorSpec("x", "FP64", (-1,)),)
    outputs = (TensorSpec("y", "FP64", (-1,)),)


class PaddedWords(Words):
    """Fill in nothing for padding, which must fail no request."""

    inputs = (TensorSpec("x", "FP64", (-1,), pad=9),)
    outputs = (TensorSpec("y", "FP64", (-1,), length_of="x"),)

    def __init__(self):
        super().__init__()
        self.answer = lambda x: np.where(x == 9, np.nan, x * x)


@pytest.mark.parametrize(
    ("kind", "batches"),
    [
        (Words, [[[1, 2], [6, 7]], [[3, 4, 5]], [[8]]]),
        (PaddedWords, [[[1, 2, 9], [3, 4, 5], [6, 7, 9], [8, 9, 9]]]),
    ],
    ids=["by shape", "padded"],
)
async def test_rows_of_different_lengths_wait_together(kind, batches, on_loop):
    model = kind()
    rows = [[1, 2], [3, 4, 5], [6, 7], [8]]
    async with running(model, on_loop, control_limit=4, wait_ms=5_000.0) as batcher:
        asked = [ask(batcher, row) for row in rows]
        await asked[0]
        await batcher.drain()
        assert await outcomes(*asked) == [[squares(row)] for row in rows]
    assert model.batches == batches


async def test_a_batch_that_hangs_is_told_with_the_line_of_the_model(on_loop):
    said = []

    def answer(values):
        said.append(batcher.hang_in_words())
        return np.square(values)

    model = Squares()
    model.answer = answer
    async with running(model, on_loop) as batcher:
        await ask(batcher, 2)
    (words,) = said
    assert re.fullmatch(r"a batch of 1 has hung for 0 s in \S+/squares\.py:\d+", words)
