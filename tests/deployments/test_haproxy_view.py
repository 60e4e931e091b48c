"""HAProxy's view of a replica, from its admin socket."""

import asyncio
import logging
import math
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from unittest import mock

import pytest

from deployments.haproxy_view import (
    LONGEST_PAUSE_S,
    MEAN_OVER_REQUESTS,
    SHORTEST_PAUSE_S,
    HaproxyView,
    HaproxyViewError,
    MeanTimes,
    ProcessWork,
    ServerTimes,
    means_since,
    parse_process_work,
    parse_server_times,
    socket_path_on,
)

#: The columns that matter, of the hundred that HAProxy 2.8 prints.
HEADER = "# pxname,svname,stot,qtime,ctime,rtime,ttime,bck,wretr,hrsp_5xx,"


#: HAProxy's total time, which counts how long clients had nothing to ask.
WITH_IDLE_CLIENTS_MS = 5000


def table(requests: int, total_ms: int, earlier_tries_ms: int = 0) -> str:
    connect_ms = min(1, total_ms - earlier_tries_ms)
    response_ms = total_ms - earlier_tries_ms - connect_ms
    times_ms = f"{earlier_tries_ms},{connect_ms},{response_ms},{WITH_IDLE_CLIENTS_MS}"
    return (
        f"{HEADER}\n"
        f"http-a,SERVE_REPLICA__a-Replica-x7,{requests},{times_ms},0,0,0,\n"
        f"http-a,SERVE_REPLICA__a-Replica-other,{requests},0,1,2,3,0,{requests // 4},"
        f"{requests // 2},\n\n"
    )


def info(requests: int = 0, idle_percent: int = 100) -> str:
    """Return the lines that matter, among others, of HAProxy's information."""
    return f"Name: HAProxy\nPid: 7\nCumReq: {requests}\nIdle_pct: {idle_percent}\nnode: vm\n"


def activity(read_at_s: float) -> str:
    """Return the lines that matter, among others, of HAProxy's activity."""
    return f"thread_id: 1 (1..1)\ndate_now: {read_at_s:.6f}\nloops: 1\n"


def times(requests: int, total_ms: float, earlier_tries_ms: float = 0.0) -> ServerTimes:
    return ServerTimes(requests, MeanTimes(total_ms, earlier_tries_ms))


def test_the_server_is_found_by_the_end_of_its_name() -> None:
    assert parse_server_times(table(1000, 43, 40), "-x7") == times(1000, 43.0, 40.0)
    assert parse_server_times(table(1000, 43, 40), "-gone") is None


def test_a_server_without_requests_has_empty_columns() -> None:
    text = f"{HEADER}\nhttp-a,r-x7,0,,,,,0,,,\n"
    assert parse_server_times(text, "-x7") == times(0, 0.0)


@pytest.mark.parametrize("text", ["# pxname,svname\na,r-x7\n", f"{HEADER}\na,r-x7,many,0,0,0,0,\n"])
def test_a_table_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(HaproxyViewError, match="not understood"):
        parse_server_times(text, "-x7")


@pytest.mark.parametrize("requests", [100, 500, 5000])
@pytest.mark.parametrize("before", [0, 7, 450, 3000])
def test_the_mean_of_the_new_requests_is_recovered_from_the_running_mean(
    requests: int, before: int
) -> None:
    """A HAProxy that has just started has a plain mean of its few requests."""
    begin = (10.0, 90.0) if before else (0.0, 0.0)
    total, earlier = begin
    for number in range(before + 1, before + requests + 1):
        total += (250.0 - total) / min(number, MEAN_OVER_REQUESTS)
        earlier += (30.0 - earlier) / min(number, MEAN_OVER_REQUESTS)
    found = means_since(times(before, *begin), times(before + requests, total, earlier))
    assert found is not None
    assert math.isclose(found.total_ms, 250.0, rel_tol=2e-3)
    assert math.isclose(found.earlier_tries_ms, 30.0, rel_tol=5e-3)


def test_the_work_of_the_process_is_read() -> None:
    assert parse_process_work(info(12, 95)) == ProcessWork(12, 0.95)


@pytest.mark.parametrize("text", ["", "CumReq: 12\n", "CumReq: many\nIdle_pct: 5\n"])
def test_information_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(HaproxyViewError, match="not understood"):
        parse_process_work(text)


async def test_the_load_is_the_busy_time_by_its_requests(tmp_path: Path) -> None:
    """A quarter of each second for 500 requests is 0.5 ms a request."""
    path = tmp_path / "admin.sock"
    view, clock = HaproxyView("-x7", path), mock.Mock()
    answers = [f"{info(500 * n, 75)}\n{table(500 * n, 9)}" for n in range(6)]
    async with raw_haproxy(path, answers):
        with mock.patch("deployments.haproxy_view.time.monotonic", clock):
            for second in range(6):
                clock.return_value = float(second)
                await view.look()
                if second == 0:
                    assert view.load is None
            assert view.refused_elsewhere == pytest.approx(0.75)
    assert view.load is not None
    assert view.load.utilization == pytest.approx(0.25)
    assert view.load.request_ms == pytest.approx(0.5)


def test_each_node_has_a_folder_for_its_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_SERVE_HAPROXY_SOCKET_PATH", "/run/ha/admin.sock")
    assert socket_path_on("ab12") == Path("/run/ha/ab12/admin.sock")


def test_a_few_requests_say_nothing() -> None:
    assert means_since(times(0, 1), times(99, 50)) is None


def haproxy(path: Path, answers: list[str]) -> AbstractAsyncContextManager[None]:
    """Answer with these tables, by an idle HAProxy."""
    return raw_haproxy(path, [f"{info()}\n{answer}" for answer in answers])


@asynccontextmanager
async def raw_haproxy(path: Path, answers: list[str]) -> AsyncIterator[None]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readline() == b"show info;show activity;show stat -1 4 -1\n"
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
            mock.patch("deployments.haproxy_view.asyncio.sleep", no_sleep),
            mock.patch("deployments.haproxy_view.random.expovariate", lambda rate: 1 / rate),
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
        monkeypatch.setattr("deployments.haproxy_view.WARN_AFTER_S", 0.0)
        await view.look()
        await view.look()
    assert view.take() is None
    assert len(caplog.records) == 1
    assert "waits in HAProxy are not seen" in caplog.text


async def test_a_table_without_the_counts_of_refusals_is_not_understood(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deployments.haproxy_view.WARN_AFTER_S", 0.0)
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
    assert view.refused_elsewhere == 0


async def test_what_requests_wait_until_they_are_read_is_told_by_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question is read 70 ms after it was asked; others were due each 20 ms since."""
    path, view = tmp_path / "admin.sock", HaproxyView("-x7", tmp_path / "admin.sock")
    monkeypatch.setattr("deployments.haproxy_view.time.time", lambda: 1000.0)
    monkeypatch.setattr("deployments.haproxy_view.random.expovariate", lambda rate: 0.02)
    answers = [f"{info()}\n{activity(1000.07)}\n{table(1000 * n, 9)}" for n in range(2)]
    async with raw_haproxy(path, answers):
        await view.look()
        await view.look()
    assert view.take_unread_ms() == pytest.approx(2 * [70, 50, 30, 10], abs=1e-3)


async def test_the_way_has_a_sample_of_the_waits_without_what_a_question_costs_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All questions wait 0.3 ms to be accepted, and every fourth 5 ms more."""
    path, view = tmp_path / "admin.sock", HaproxyView("-x7", tmp_path / "admin.sock")
    monkeypatch.setattr("deployments.haproxy_view.time.time", lambda: 1000.0)
    monkeypatch.setattr("deployments.haproxy_view.random.expovariate", lambda rate: 1.0)
    answers = [
        f"{info(500 * n, 75)}\n{activity(1000.0053 if n % 4 == 3 else 1000.0003)}\n"
        f"{table(500 * n, 9)}"
        for n in range(60)
    ]
    async with raw_haproxy(path, answers):
        for number in range(60):
            await view.look()
            if number == 20:
                assert view.load is not None
                assert view.load.waits_ms == ()
    assert view.load is not None
    assert sorted(view.load.waits_ms) == pytest.approx([0.0] * 45 + [5.0] * 15, abs=1e-3)


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
    monkeypatch.setattr("deployments.haproxy_view.time.time", clock)
    monkeypatch.setattr("deployments.haproxy_view.random.expovariate", lambda rate: 1 / rate)
    monkeypatch.setattr("deployments.haproxy_view.asyncio.sleep", no_sleep)
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
    monkeypatch.setattr("deployments.haproxy_view.time.time", lambda: 1000.0)
    monkeypatch.setattr("deployments.haproxy_view.random.expovariate", lambda rate: 5.0)
    answers = [
        f"{info()}\n{table(0, 9)}",
        f"{info()}\n{activity(read_at_s)}\n{table(1000, 9)}",
    ]
    async with raw_haproxy(path, answers):
        await view.look()
        await view.look()
    assert view.take_unread_ms() == unread_ms
    assert view.take_unread_ms() == []


async def test_a_haproxy_that_does_not_read_in_time_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, view = tmp_path / "admin.sock", HaproxyView("-x7", tmp_path / "admin.sock")
    monkeypatch.setattr("deployments.haproxy_view._TIMEOUT_S", 0.05)
    monkeypatch.setattr("deployments.haproxy_view.random.expovariate", lambda rate: 5.0)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        await view.look()
    path.unlink()
    async with haproxy(path, [table(0, 9), table(1000, 9)]):
        await view.look()
        await view.look()
    assert view.take_unread_ms() == pytest.approx([50.0])


async def test_a_haproxy_that_the_supervisor_gave_up_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, view = tmp_path / "admin.sock", HaproxyView("-x7", tmp_path / "admin.sock")
    clock = mock.Mock(side_effect=[1000.0, 1000.5, *9 * [1001.0]])
    monkeypatch.setattr("deployments.haproxy_view.time.time", clock)
    monkeypatch.setattr("deployments.haproxy_view.random.expovariate", lambda rate: 5.0)
    async with raw_haproxy(path, ["", f"{info()}\n{table(0, 9)}", f"{info()}\n{table(999, 9)}"]):
        for _ in range(3):
            await view.look()
    assert view.take_unread_ms() == pytest.approx([500.0])
