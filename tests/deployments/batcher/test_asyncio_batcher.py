"""The live batcher on a real event loop and device thread, with a model that the test controls."""

import asyncio
import inspect
import math
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray

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
    RowsError,
)
from deployments.models.base import Model, TensorSpec
from policy.batcher.core import BatcherCore
from policy.batcher.limits import Limits
from policy.batcher.requests import FixedPolicy
from policy.batching_policy import BatchingPolicy
from tests.support.batching.batcher_requests import submit, submit_nowait
from tests.support.models.emulated_service import end_device_thread
from tests.support.waiting import LIMIT_S, until

Arrays = Mapping[str, NDArray[Any]]


class Squares(Model):
    """Square `x`, once the gate is open; some values of `x` make a batch fail.

    Negative: an unknown error. 13: a `RequestError`. 14: a `RowsError` that names the rows.
    990: the thread ends. 991: the device fails from then on.
    """

    inputs = (TensorSpec("x", "FP64", ()),)
    outputs = (TensorSpec("y", "FP64", ()),)

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.batches: list[list[float]] = []
        self.threads: set[int] = set()
        self.broken = False
        self.answer: Callable[[NDArray[Any]], NDArray[Any]] = np.square

    def load(self, device: str) -> None: ...

    def forward(self, batch: Arrays) -> Arrays:
        assert self.gate.wait(LIMIT_S)
        self.threads.add(threading.get_ident())
        self.batches.append(batch["x"].tolist())
        if (batch["x"] < 0).any():
            raise ArithmeticError("poison")
        if (batch["x"] == 13).any():
            raise BadRequestError("13 is not allowed")
        if (batch["x"] == 14).any():
            places = np.flatnonzero(batch["x"] == 14).tolist()
            raise RowsError({place: BadRequestError("14 is not allowed") for place in places})
        if (batch["x"] == 991).any():
            self.broken = True
        if (batch["x"] == 990).any():
            raise SystemExit("the driver gave up")
        if self.broken:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return {"y": self.answer(batch["x"])}


@pytest.fixture(params=[False, True], ids=["device thread", "event loop"])
def on_loop(request: pytest.FixtureRequest) -> bool:
    """Whether the event loop runs the batches itself."""
    return bool(request.param)


@asynccontextmanager
async def running(
    model: Squares, records: list[BatchRecord] | None = None, **options: Any
) -> AsyncIterator[Batcher]:
    limit, cap = options.pop("control_limit", 1), options.pop("max_batch_size", 4)
    wait_ms = options.pop("max_wait_ms", None)
    prepare = options.pop("prepare_thread", lambda: None)
    placement = BatchPlacement()
    if options.pop("on_loop", False):
        placement.use([0.0] * cap, limit_ms=1e6, now_s=time.monotonic())
    policy = BatchingPolicy.from_control_limit(limit, cap, wait_ms)
    latency_ms = options.pop("latency_ms", [options.pop("batch_ms", 1.0)] * cap)
    limits = Limits(
        **{"max_age_ms": 10_000.0, "max_queue_rows": 100, **options}, latency_ms=latency_ms
    )
    core = BatcherCore(FixedPolicy(policy), limits)
    batcher = Batcher(
        model, core, (records if records is not None else []).append, placement, prepare
    )
    try:
        yield batcher
    finally:
        model.gate.set()
        batcher.close()


def ask(batcher: Batcher, *values: float, arrival_s: float | None = None) -> asyncio.Task[Arrays]:
    inputs = {"x": np.array(values)}
    arrival_s = time.monotonic() if arrival_s is None else arrival_s
    return asyncio.ensure_future(submit(batcher, inputs, len(values), arrival_s))


async def until_busy(batcher: Batcher) -> None:
    """Let the event loop run until a batch is on the device."""
    for _ in range(10):
        if batcher.core.device_busy:
            return
        await asyncio.sleep(0)
    raise AssertionError("no batch was started")


async def test_each_request_gets_its_own_answer(on_loop: bool) -> None:
    model = Squares()
    async with running(model, on_loop=on_loop) as batcher:
        answers = await asyncio.gather(*(ask(batcher, number) for number in range(100, 150)))
    assert [answer["y"].tolist() for answer in answers] == [[n * n] for n in range(100, 150)]
    assert len(model.threads) == 1, "one thread drives the device"
    assert (threading.get_ident() in model.threads) == on_loop


async def test_the_outputs_of_a_cut_request_are_joined_in_order(on_loop: bool) -> None:
    model = Squares()
    async with running(model, max_batch_size=4, on_loop=on_loop) as batcher:
        answer = await ask(batcher, *range(11))
    assert answer["y"].tolist() == [n * n for n in range(11)]
    assert [len(batch) for batch in model.batches] == [4, 4, 3]


async def test_requests_read_in_one_iteration_of_the_event_loop_share_a_batch(
    on_loop: bool,
) -> None:
    model = Squares()
    async with running(model, max_batch_size=8, on_loop=on_loop) as batcher:
        await asyncio.gather(*(ask(batcher, number) for number in range(5)))
    assert model.batches == [[0, 1, 2, 3, 4]]


async def test_a_callback_that_fails_keeps_no_other_request_from_its_answer(
    on_loop: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(outcome: Outcome) -> None:
        raise ZeroDivisionError

    async with running(Squares(), control_limit=2, on_loop=on_loop) as batcher:
        submit_nowait(batcher, {"x": np.array([3.0])}, 1, time.monotonic(), fail)
        assert (await ask(batcher, 4))["y"].tolist() == [16]
    assert "failed to hand an outcome" in caplog.text


async def test_a_callback_is_not_called_once_its_request_is_given_up() -> None:
    model = Squares()
    outcomes: list[Outcome] = []
    model.gate.clear()
    async with running(model) as batcher:
        on_device = submit_nowait(
            batcher, {"x": np.array([3.0])}, 1, time.monotonic(), outcomes.append
        )
        await until_busy(batcher)
        waiting = submit_nowait(
            batcher, {"x": np.array([4.0])}, 1, time.monotonic(), outcomes.append
        )
        on_device.cancel()
        waiting.cancel()
        waiting.cancel()
        assert on_device.done
        model.gate.set()
        await batcher.drain()
    assert outcomes == []
    assert model.batches == [[3]]


async def test_requests_that_the_model_blames_fail_and_the_others_need_no_search(
    on_loop: bool,
) -> None:
    model = Squares()
    async with running(model, control_limit=8, max_batch_size=8, on_loop=on_loop) as batcher:
        requests = [
            ask(batcher, 1, 2),
            ask(batcher, 3, 14),
            ask(batcher, 14),
            ask(batcher, 4, 5, 6),
        ]
        results = await asyncio.gather(*requests, return_exceptions=True)
    assert [str(result) for result in results[1:3]] == ["14 is not allowed"] * 2
    assert [r["y"].tolist() for r in results if isinstance(r, dict)] == [[1, 4], [16, 25, 36]]
    assert model.batches == [[1, 2, 3, 14, 14, 4, 5, 6], [1, 2, 4, 5, 6]]


async def test_a_slice_that_is_done_after_later_slices_is_put_in_its_place(on_loop: bool) -> None:
    model = Squares()
    async with running(model, control_limit=4, max_batch_size=4, on_loop=on_loop) as batcher:
        poison, large = ask(batcher, -1), ask(batcher, *range(1, 12))
        results = await asyncio.gather(poison, large, return_exceptions=True)
    assert isinstance(results[0], ModelError)
    assert isinstance(results[1], dict)
    assert results[1]["y"].tolist() == [n * n for n in range(1, 12)]


async def test_a_device_given_up_fails_its_batch_and_every_waiting_request_at_once() -> None:
    model = Squares()
    model.gate.clear()
    async with running(model) as batcher:
        on_it = ask(batcher, 1)
        await until_busy(batcher)
        waits = ask(batcher, 2)
        await asyncio.sleep(0)
        batcher.lose_device("the device of this replica does not answer")
        results = await asyncio.gather(on_it, waits, return_exceptions=True)
        assert [type(result) for result in results] == [DeviceError] * 2
        with pytest.raises(DeviceError, match="does not answer"):
            await ask(batcher, 3)
        # If the batch ends after all, its results are discarded and nothing starts.
        model.gate.set()
        await end_device_thread(batcher)
        await batcher.drain()
        assert (batcher.rows.completed, model.batches) == (0, [[1]])


async def test_a_model_that_ends_the_thread_loses_the_device(on_loop: bool) -> None:
    model = Squares()
    async with running(model, control_limit=2, max_batch_size=2, on_loop=on_loop) as batcher:
        results = await asyncio.gather(
            ask(batcher, 990), ask(batcher, 2), ask(batcher, 3), return_exceptions=True
        )
        assert [type(result) for result in results] == [DeviceError] * 3
        assert batcher.lost_reason is not None


async def test_a_device_that_fails_on_everything_is_lost_and_no_request_is_blamed(
    on_loop: bool,
) -> None:
    model = Squares()
    async with running(model, control_limit=4, on_loop=on_loop) as batcher:
        assert (await ask(batcher, 1, 2, 3, 4))["y"].tolist() == [1, 4, 9, 16]
        results = await asyncio.gather(
            *(ask(batcher, value) for value in (1, 2, 991, 4, 5, 6)), return_exceptions=True
        )
    assert {type(result) for result in results} == {DeviceError}
    assert batcher.lost_reason is not None
    assert len(model.batches) == 1 + PROBE_AFTER + 1, "the last batch is the model's own example"


async def test_a_device_that_answers_the_example_is_not_lost_however_many_batches_fail(
    on_loop: bool,
) -> None:
    model = Squares()
    async with running(model, on_loop=on_loop) as batcher:
        for _ in range(2 * PROBE_AFTER):
            with pytest.raises(ModelError):
                await ask(batcher, -1)
        assert batcher.lost_reason is None
        assert (await ask(batcher, 3))["y"].tolist() == [9]
    assert model.batches.count([0.0]) == 2


async def test_a_wrong_number_of_output_rows_fails_the_request(on_loop: bool) -> None:
    model = Squares()
    model.answer = lambda x: x[:-1]
    async with running(model, on_loop=on_loop) as batcher:
        with pytest.raises(ModelError, match=r"wrong outputs: output 'y': "):
            await ask(batcher, 1, 2)
        assert batcher.model_errors.count == 1
        model.answer = np.square
        assert (await ask(batcher, 3))["y"].tolist() == [9], "the batcher still works"


async def test_a_hang_is_told_with_the_line_of_the_model() -> None:
    model = Squares()
    model.gate.clear()
    async with running(model) as batcher:
        asking = ask(batcher, 1)
        await until(lambda: " in " in batcher.hang_in_words())
        file = re.escape(inspect.getfile(Squares))
        assert re.fullmatch(
            rf"a batch of 1 has hung for 0 s in {file}:\d+", batcher.hang_in_words()
        )
        model.gate.set()
        await asking


async def test_a_request_that_costs_its_batch_a_row_fails_alone(on_loop: bool) -> None:
    model = Squares()
    model.answer = lambda x: x[x != 5]
    async with running(model, control_limit=4, on_loop=on_loop) as batcher:
        requests = [ask(batcher, value) for value in (1, 5, 2, 3)]
        results = await asyncio.gather(*requests, return_exceptions=True)
    assert [r["y"].tolist() for r in results if isinstance(r, dict)] == [[1], [2], [3]]
    assert isinstance(results[1], ModelError)
    assert "output 'y': (1,) expected, got (0,)" in str(results[1])


async def test_a_row_that_does_not_fit_its_output_fails_its_own_request_alone(
    on_loop: bool,
) -> None:
    model = Squares()
    model.answer = lambda x: np.where(x == 5, np.nan, x)
    async with running(model, control_limit=4, on_loop=on_loop) as batcher:
        requests = [ask(batcher, 1), ask(batcher, 2), ask(batcher, *range(4, 9))]
        results = await asyncio.gather(*requests, return_exceptions=True)
        await batcher.drain()
    assert [r["y"].tolist() for r in results if isinstance(r, dict)] == [[1], [2]]
    assert isinstance(results[2], ModelError)
    assert "output 'y' has NaN or infinity" in str(results[2])
    assert model.batches == [[1, 2, 4, 5]], "nothing is computed twice, or for nobody"
    assert batcher.model_errors.count == 1


async def test_a_model_may_write_into_its_inputs_however_they_came(on_loop: bool) -> None:
    model = Squares()

    def negate(x: NDArray[Any]) -> NDArray[Any]:
        x *= -1
        return x

    model.answer = negate
    binary = np.frombuffer(np.array([1.0, 2.0]).tobytes())
    async with running(model, on_loop=on_loop) as batcher:
        answer = await submit(batcher, {"x": binary}, 2, time.monotonic())
    assert answer["y"].tolist() == [-1, -2]
    assert binary.tolist() == [1, 2]


async def test_what_waits_for_an_overdue_batch_is_refused_before_that_ends() -> None:
    """It learned of a batch of 5 s after 5 s, while another replica idled."""
    model = Squares()
    model.gate.clear()
    limits = {"admit_within_ms": 390.0, "answer_within_ms": 400.0}
    async with running(model, latency_ms=[1.0, 1.0], max_batch_size=2, **limits) as batcher:
        long = ask(batcher, 1)
        await until_busy(batcher)
        with pytest.raises((BusyError, DeadlineError)):
            await ask(batcher, 2)
        assert not long.done()
        model.gate.set()
        await long
    assert model.batches == [[1]]


async def test_no_request_is_refused_while_an_idle_device_is_to_take_those_that_wait(
    on_loop: bool,
) -> None:
    """Of two clients with large bodies, one was refused: the other's batch was about to start."""
    model = Squares()
    async with running(model, on_loop=on_loop, max_queue_rows=1, max_batch_size=1) as batcher:
        # All in one iteration of the event loop, as they are submitted.
        answers = await asyncio.gather(ask(batcher, 1), ask(batcher, 2))
        assert [answer["y"].tolist() for answer in answers] == [[1], [4]]
        assert (batcher.rows.refused, batcher.rows.completed) == (0, 2)


async def test_requests_that_waited_in_their_sockets_share_a_batch(on_loop: bool) -> None:
    """A backlog was served one by one, as a full batch would have been too late for its requests.

    So a batch's saving was lost just when it was needed, and the backlog grew.
    """
    model = Squares()
    limits = {"admit_within_ms": 194e3, "answer_within_ms": 200e3, "max_age_ms": 1e6}
    latency_ms = [1500.0 * size for size in range(1, 65)]  # a full batch takes half of the time
    async with running(
        model, on_loop=on_loop, max_batch_size=64, latency_ms=latency_ms, **limits
    ) as batcher:
        arrival_s = time.monotonic() - 120
        sent = [ask(batcher, n, arrival_s=arrival_s) for n in range(100, 120)]
        answers = await asyncio.gather(*sent)
        assert [answer["y"].tolist() for answer in answers] == [[n * n] for n in range(100, 120)]
        assert model.batches == [[*range(100, 120)]]


async def test_a_request_whose_deadline_passes_is_answered_at_once_and_not_computed() -> None:
    model = Squares()
    model.gate.clear()
    async with running(model) as batcher:
        first = ask(batcher, 1)
        await until_busy(batcher)
        now_s = time.monotonic()
        inputs = {"x": np.array([2.0])}
        with pytest.raises(DeadlineError):
            await submit(batcher, inputs, 1, now_s, deadline_s=now_s + 0.01)
        assert time.monotonic() >= now_s + 0.01
        with pytest.raises(DeadlineError, match="shorter than its own processing time"):
            await submit(batcher, inputs, 1, now_s, deadline_s=now_s)
        model.gate.set()
        await first
        assert (batcher.rows.deadline_missed, batcher.rows.refused) == (2, 0)
    assert model.batches == [[1]]


async def test_draining_answers_accepted_requests_and_refuses_new_ones(on_loop: bool) -> None:
    model = Squares()
    async with running(model, control_limit=4, on_loop=on_loop) as batcher:
        accepted = [ask(batcher, 1), ask(batcher, 2)]
        await asyncio.sleep(0)
        await batcher.drain()
        with pytest.raises(BusyError):
            await ask(batcher, 3)
        assert [(await task)["y"].tolist() for task in accepted] == [[1], [4]]


async def test_a_batch_that_is_long_on_the_event_loop_is_the_last_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its forward holds the interpreter's lock for 30 ms."""
    model, slow = Squares(), threading.Event()
    records: list[BatchRecord] = []

    def answer(x: NDArray[Any]) -> NDArray[Any]:
        end_s = time.thread_time() + (0.03 if slow.is_set() else 0.0)
        while time.thread_time() < end_s:
            pass
        return np.asarray(x * x)

    model.answer = answer
    async with running(model, records, on_loop=True) as batcher:
        batcher.placement.use([0.0] * 4, limit_ms=1.0, now_s=time.monotonic())
        for value in range(3):
            await ask(batcher, value)
        slow.set()
        for value in range(3):
            await ask(batcher, value)
    assert [record.on_loop for record in records] == [True] * 4 + [False] * 2
    assert "a batch of 1 kept the event loop" in caplog.text
    assert records[3].cpu_s >= 0.03


async def test_a_model_that_waits_leaves_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    # Where a thread is not woken for so long, the first of its batches is the last there.
    monkeypatch.setattr(BatchPlacement, "LONGEST_WAIT_S", math.inf)
    model = Squares()
    records: list[BatchRecord] = []

    def answer(x: NDArray[Any]) -> NDArray[Any]:
        threading.Event().wait(3e-3)
        return np.asarray(x * x)

    model.answer = answer
    async with running(model, records, on_loop=True) as batcher:
        for value in range(IN_A_ROW + 2):
            await ask(batcher, value)
    assert [record.on_loop for record in records] == [True] * IN_A_ROW + [False] * 2


@pytest.mark.parametrize(("batches_in_turn", "turns"), [(1, 10), (4, 3), (math.inf, 1)])
async def test_full_batches_follow_each_other_on_the_event_loop_for_a_limited_time(
    batches_in_turn: float, turns: int
) -> None:
    """A queue of many batches does not keep the loop from what else it has to do."""
    model = Squares()
    clock_s = 0.0

    def answer(x: NDArray[Any]) -> NDArray[Any]:
        nonlocal clock_s
        clock_s += LONGEST_TURN_S / batches_in_turn
        in_turn.append(turn)
        return np.asarray(x * x)

    model.answer = answer
    turn, in_turn = 0, list[int]()
    async with running(model, on_loop=True, max_batch_size=4) as batcher:
        with mock.patch("deployments.batcher.asyncio_batcher.time") as time:
            time.monotonic = lambda: clock_s
            tasks = [ask(batcher, number) for number in range(100, 140)]
            while not all(task.done() for task in tasks):
                turn += 1
                await asyncio.sleep(0)
    assert len(in_turn) == 10
    assert len(set(in_turn)) == turns


async def test_the_device_thread_is_prepared_before_its_first_batch() -> None:
    """OpenMP keeps a number of threads for each thread, so the device thread must set its own."""
    prepared: list[int] = []
    model = Squares()
    async with running(
        model, prepare_thread=lambda: prepared.append(threading.get_ident())
    ) as batcher:
        await ask(batcher, 1)
        await ask(batcher, 2)
    assert prepared == list(model.threads)


class Words(Squares):
    """Square rows of any length."""

    inputs = (TensorSpec("x", "FP64", (-1,)),)
    outputs = (TensorSpec("y", "FP64", (-1,)),)


class PaddedWords(Words):
    inputs = (TensorSpec("x", "FP64", (-1,), pad=9),)
    outputs = (TensorSpec("y", "FP64", (-1,), length_of="x"),)


@pytest.mark.parametrize(
    ("kind", "batches"),
    [
        (Words, [[[1, 2], [6, 7]], [[3, 4, 5]], [[8]]]),
        (PaddedWords, [[[1, 2, 9], [3, 4, 5], [6, 7, 9], [8, 9, 9]]]),
    ],
    ids=["by shape", "padded"],
)
async def test_rows_of_different_lengths_wait_together(
    kind: type[Words], batches: list[list[list[float]]], on_loop: bool
) -> None:
    model = kind()
    rows = [[1.0, 2.0], [3.0, 4.0, 5.0], [6.0, 7.0], [8.0]]
    async with running(model, control_limit=4, max_wait_ms=5_000.0, on_loop=on_loop) as batcher:
        asked = [
            asyncio.ensure_future(submit(batcher, {"x": np.array([row])}, 1, time.monotonic()))
            for row in rows
        ]
        await asked[0]
        await batcher.drain()
        answers = await asyncio.gather(*asked)
    squares = [[[value**2 for value in row]] for row in rows]
    assert [answer["y"].tolist() for answer in answers] == squares
    assert model.batches == batches


async def test_a_cut_request_whose_rows_have_outputs_of_different_shapes_fails_alone() -> None:
    model = Words()
    model.answer = lambda x: np.repeat(x, len(x), axis=1)
    async with running(model, max_batch_size=2) as batcher:
        inputs = {"x": np.array([[1.0], [2.0], [3.0]])}
        cut = asyncio.ensure_future(submit(batcher, inputs, 3, time.monotonic()))
        whole = asyncio.ensure_future(
            submit(batcher, {"x": np.array([[4.0, 5.0]])}, 1, time.monotonic())
        )
        with pytest.raises(ModelError, match="outputs of different shapes; send fewer"):
            await cut
        assert (await whole)["y"].tolist() == [[4, 5]]


async def test_what_a_model_does_not_fill_in_for_padding_fails_no_request(on_loop: bool) -> None:
    model = PaddedWords()
    model.answer = lambda x: np.where(x == 9, np.nan, x)
    async with running(model, control_limit=2, on_loop=on_loop) as batcher:
        asked = [
            submit(batcher, {"x": np.array([row])}, 1, time.monotonic())
            for row in ([1.0, 2.0], [3.0])
        ]
        answers = await asyncio.gather(*asked)
    assert [answer["y"].tolist() for answer in answers] == [[[1, 2]], [[3]]]
