"""HAProxy's view of a replica, from its admin socket."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from unittest import mock

import pytest

from deployments.haproxy.admin_answers import MeanTimes
from deployments.haproxy.view import (
    LONGEST_PAUSE_S,
    SHORTEST_PAUSE_S,
    HaproxyView,
    socket_path_on,
)
from tests.support.haproxy_answers import activity, info, table


def test_each_node_has_a_folder_for_its_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_SERVE_HAPROXY_SOCKET_PATH", "/run/ha/admin.sock")
    assert socket_path_on("ab12") == Path("/run/ha/ab12/admin.sock")


def haproxy(path: Path, answers: list[str]) -> AbstractAsyncContextManager[None]:
    """Answer with these tables, by an idle HAProxy."""
    return raw_haproxy(path, [f"{info()}\n{answer}" for answer in answers])


@asynccontextmanager
async def raw_haproxy(path: Path, answers: list[str]) -> AsyncIterator[None]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readline() == b"show activity;show stat -1 6 -1\n"
        writer.write(answers.pop(0).encode())
        writer.close()

    server = await asyncio.start_unix_server(answer, path)
    try:
        yield
    finally:
        server.close()
        await server.wait_closed()


async def test_it_follows_a_server_and_forgets_it_when_haproxy_restarts(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    answers = [
        table(0, 0),
        table(50, 10),  # too few since the last look
        table(10_000, 100, 30),
        table(200, 1),  # a new HAProxy
        table(10_200, 5),
    ]
    view = HaproxyView("-x7", path)
    seen = []
    async with haproxy(path, answers):
        for _ in range(5):
            await view.look()
            seen.append(view.take())
    assert seen[:2] == [None, None]
    assert seen[2] == MeanTimes(pytest.approx(100), pytest.approx(30))
    assert seen[3:] == [None, MeanTimes(pytest.approx(5), 0.0)]


async def test_looks_between_two_calls_count_by_their_requests(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    answers = [table(0, 0), table(30_000, 100), table(40_000, 20)]
    view = HaproxyView("-x7", path)
    async with haproxy(path, answers):
        for _ in range(3):
            await view.look()
    means = view.take()
    assert means is not None
    assert means.total_ms == pytest.approx(80)
    assert view.take() is None


async def test_what_rounding_magnified_cancels_out_over_the_looks(tmp_path: Path) -> None:
    """HAProxy's mean is 1 ms once: without the look after that it would stay too high."""
    path, view = tmp_path / "admin.sock", HaproxyView("-x7", tmp_path / "admin.sock")
    answers = [table(10_000 + 200 * n, 3 if n == 2 else 1) for n in range(6)]
    async with haproxy(path, answers):
        for _ in range(6):
            await view.look()
    means = view.take()
    assert means is not None
    assert means.total_ms == pytest.approx((4 * 1 + 3) / 5, rel=0.1)


async def test_a_busy_server_is_looked_at_often_and_an_idle_one_seldom(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    # More than HAProxy averages over, in no time; then nothing; then it is waited for, in vain.
    answers = [table(0, 0), *(table(1000 * n, 9) for n in range(1, 4)), *[table(3000, 9)] * 2]
    pauses_s: list[float] = []

    async def no_sleep(pause_s: float) -> None:
        pauses_s.append(pause_s)
        if len(pauses_s) > 6:
            raise asyncio.CancelledError

    async with haproxy(path, answers):
        with (
            mock.patch("deployments.haproxy.view.asyncio.sleep", no_sleep),
            mock.patch("deployments.haproxy.view.random.expovariate", lambda rate: 1 / rate),
            pytest.raises(asyncio.CancelledError),
        ):
            await HaproxyView("-x7", path).watch()
    due_s = [
        *(LONGEST_PAUSE_S, LONGEST_PAUSE_S),
        *(SHORTEST_PAUSE_S, SHORTEST_PAUSE_S, SHORTEST_PAUSE_S),
        *(LONGEST_PAUSE_S, LONGEST_PAUSE_S),
    ]
    # Less the time since HAProxy read the last question.
    assert pauses_s == pytest.approx(due_s, abs=0.8 * SHORTEST_PAUSE_S)


async def test_without_a_socket_it_says_so_once_and_not_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = HaproxyView("-x7", tmp_path / "none.sock")
    with caplog.at_level(logging.WARNING, "sojourn.http"):
        await view.look()
        assert not caplog.records
        monkeypatch.setattr("deployments.haproxy.view.WARN_AFTER_S", 0.0)
        await view.look()
        await view.look()
    assert view.take() is None
    assert len(caplog.records) == 1
    assert "waits in HAProxy are not seen" in caplog.text


async def test_a_table_without_the_counts_of_refusals_is_not_understood(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deployments.haproxy.view.WARN_AFTER_S", 0.0)
    path = tmp_path / "admin.sock"
    view = HaproxyView("-x7", path)
    short = (
        "# pxname,svname,stot,qtime,ctime,rtime,ttime,\n"
        "http-a,r-x7,1,0,1,2,3,\nhttp-a,r-other,1,0,1,2,3,\n"
    )
    with caplog.at_level(logging.WARNING, "sojourn.http"):
        async with haproxy(path, [short]):
            await view.look()
    assert "bck" in caplog.text
    assert view.take_denied() == 0


async def test_what_requests_wait_until_they_are_read_is_told_by_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question is read 70 ms after it was asked; others were due each 20 ms since."""
    path, view = tmp_path / "admin.sock", HaproxyView("-x7", tmp_path / "admin.sock")
    monkeypatch.setattr("deployments.haproxy.view.time.time", lambda: 1000.0)
    monkeypatch.setattr("deployments.haproxy.view.random.expovariate", lambda rate: 0.02)
    answers = [f"{info()}\n{activity(1000.07)}\n{table(1000 * n, 9)}" for n in range(2)]
    async with raw_haproxy(path, answers):
        await view.look()
        await view.look()
    own_ms = 0.5  # a question takes HAProxy no longer itself
    expected_ms = [wait_ms - own_ms for wait_ms in (70, 50, 30, 10)]
    assert view.take_unread_ms() == pytest.approx(2 * expected_ms, abs=1e-3)


async def test_what_a_question_takes_itself_is_no_wait_of_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Questions take 0.2 to 0.3 ms, while requests take 0.4 in all; one takes 5 ms more."""
    path, view = tmp_path / "admin.sock", HaproxyView("-x7", tmp_path / "admin.sock")
    monkeypatch.setattr("deployments.haproxy.view.time.time", lambda: 1000.0)
    monkeypatch.setattr("deployments.haproxy.view.random.expovariate", lambda rate: 1.0)
    waits_s = [0.0002, 0.0003, 0.0002, 0.0052, 0.0002]
    answers = [
        f"{info(500 * n, 85)}\n{activity(1000.0 + wait_s)}\n{table(500 * n, 1)}"
        for n, wait_s in enumerate(waits_s)
    ]
    async with raw_haproxy(path, answers):
        for _ in waits_s:
            await view.look()
    assert view.take_unread_ms() == pytest.approx([0.0, 0.0, 0.0, 5.0, 0.0], abs=1e-3)
    assert view.take_unread_ms() == []


async def test_a_clock_that_is_set_back_delays_no_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, pauses_s = tmp_path / "admin.sock", list[float]()

    async def no_sleep(pause_s: float) -> None:
        pauses_s.append(pause_s)
        if len(pauses_s) > 2:
            raise asyncio.CancelledError
        monkeypatch.setattr(clock, "return_value", clock.return_value - 3600.0)

    clock = mock.Mock(return_value=5000.0)
    monkeypatch.setattr("deployments.haproxy.view.time.time", clock)
    monkeypatch.setattr("deployments.haproxy.view.random.expovariate", lambda rate: 1 / rate)
    monkeypatch.setattr("deployments.haproxy.view.asyncio.sleep", no_sleep)
    answers = [f"{info()}\n{activity(5000.0)}\n{table(0, 0)}"] * 2
    async with raw_haproxy(path, answers):
        with pytest.raises(asyncio.CancelledError):
            await HaproxyView("-x7", path).watch()
    assert max(pauses_s) <= LONGEST_PAUSE_S


@pytest.mark.parametrize(("read_at_s", "unread_ms"), [(999.0, []), (2000.0, [2000.0])])
async def test_a_clock_that_was_set_says_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_at_s: float, unread_ms: list[float]
) -> None:
    path, view = tmp_path / "admin.sock", HaproxyView("-x7", tmp_path / "admin.sock")
    monkeypatch.setattr("deployments.haproxy.view.time.time", lambda: 1000.0)
    monkeypatch.setattr("deployments.haproxy.view.random.expovariate", lambda rate: 5.0)
    answers = [
        f"{info()}\n{table(0, 9)}",
        f"{info()}\n{activity(read_at_s)}\n{table(1000, 9)}",
    ]
    async with raw_haproxy(path, answers):
        await view.look()
        await view.look()
    assert view.take_unread_ms() == pytest.approx([ms - 0.5 for ms in unread_ms])
    assert view.take_unread_ms() == []


async def test_a_haproxy_that_does_not_read_in_time_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, view = tmp_path / "admin.sock", HaproxyView("-x7", tmp_path / "admin.sock")
    monkeypatch.setattr("deployments.haproxy.view._TIMEOUT_S", 0.05)
    monkeypatch.setattr("deployments.haproxy.view.random.expovariate", lambda rate: 5.0)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        await view.look()
    path.unlink()
    async with haproxy(path, [table(0, 9), table(1000, 9)]):
        await view.look()
        await view.look()
    assert view.take_unread_ms() == pytest.approx([49.5])


async def test_a_haproxy_that_the_supervisor_gave_up_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, view = tmp_path / "admin.sock", HaproxyView("-x7", tmp_path / "admin.sock")
    clock = mock.Mock(side_effect=[1000.0, 1000.5, *9 * [1001.0]])
    monkeypatch.setattr("deployments.haproxy.view.time.time", clock)
    monkeypatch.setattr("deployments.haproxy.view.random.expovariate", lambda rate: 5.0)
    async with raw_haproxy(path, ["", f"{info()}\n{table(0, 9)}", f"{info()}\n{table(999, 9)}"]):
        for _ in range(3):
            await view.look()
    assert view.take_unread_ms() == pytest.approx([499.5])
