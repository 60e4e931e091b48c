"""HAProxy's view of a replica, from its admin socket."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from deployments.haproxy_view import (
    MEAN_OVER_REQUESTS,
    HaproxyView,
    HaproxyViewError,
    ServerTimes,
    mean_since_ms,
    parse_server_times,
    socket_path_on,
)

#: The columns that matter, of the hundred that HAProxy 2.8 prints.
HEADER = "# pxname,svname,stot,qtime,ctime,rtime,ttime,"


def table(requests: int, connect_ms: int, response_ms: int) -> str:
    return (
        f"{HEADER}\nhttp_frontend,FRONTEND,9,,,,,\n"
        f"http-a,SERVE_REPLICA__a-Replica-x7,{requests},0,{connect_ms},{response_ms},99,\n"
        "http-a,SERVE_REPLICA__a-Replica-other,5,0,1,2,3,\nhttp-a,BACKEND,9,0,0,0,0,\n\n"
    )


def test_the_server_is_found_by_the_end_of_its_name() -> None:
    assert parse_server_times(table(1000, 3, 40), "-x7") == ServerTimes(1000, 3.0, 40.0)
    assert parse_server_times(table(1000, 3, 40), "-gone") is None


def test_a_server_without_requests_has_empty_columns() -> None:
    text = f"{HEADER}\nhttp-a,r-x7,0,,,,,\n"
    assert parse_server_times(text, "-x7") == ServerTimes(0, 0.0, 0.0)


@pytest.mark.parametrize("text", ["# pxname,svname\na,r-x7\n", f"{HEADER}\na,r-x7,many,0,0,0,0,\n"])
def test_a_table_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(HaproxyViewError, match="not understood"):
        parse_server_times(text, "-x7")


@pytest.mark.parametrize("requests", [100, 500, 5000])
def test_the_mean_of_the_new_requests_is_recovered_from_the_running_mean(requests: int) -> None:
    mean = 10.0
    for _ in range(requests):
        mean += (250.0 - mean) / MEAN_OVER_REQUESTS
    found = mean_since_ms(ServerTimes(7, 4.0, 6.0), ServerTimes(7 + requests, 4.0, mean - 4.0))
    assert found is not None
    assert math.isclose(found, 250.0, rel_tol=1e-3)


def test_each_node_has_a_folder_for_its_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_SERVE_HAPROXY_SOCKET_PATH", "/run/ha/admin.sock")
    assert socket_path_on("ab12") == Path("/run/ha/ab12/admin.sock")


def test_a_few_requests_say_nothing() -> None:
    assert mean_since_ms(ServerTimes(0, 1, 1), ServerTimes(99, 50, 50)) is None


@asynccontextmanager
async def haproxy(path: Path, answers: list[str]) -> AsyncIterator[None]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readline() == b"show stat\n"
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
        table(0, 0, 0),
        table(50, 5, 5),  # too few since the last look
        table(10_000, 20, 80),
        table(200, 1, 1),  # a new HAProxy
        table(10_200, 2, 3),
    ]
    view = HaproxyView("-x7", path)
    async with haproxy(path, answers):
        seen = [await view.look() for _ in range(5)]
    assert [value and round(value) for value in seen] == [None, None, 100, None, 5]


async def test_without_a_socket_it_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    view = HaproxyView("-x7", tmp_path / "none.sock")
    with caplog.at_level(logging.WARNING, "sojourn.http"):
        assert [await view.look(), await view.look()] == [None, None]
    assert len(caplog.records) == 1
    assert "waits in HAProxy are not seen" in caplog.text
