"""HAProxy's statistics of a replica, from its admin socket."""

from pathlib import Path

import pytest

from deployments.haproxy import stats
from deployments.haproxy.admin_socket import AdminError
from deployments.haproxy.stats import (
    MIN_REQUESTS,
    BackendStats,
    HaproxyStats,
    ProxyReport,
    parse_stats,
)

PATH = Path("admin.sock")
#: The columns that matter, of the hundred that HAProxy 2.8 prints.
HEADER = "# pxname,svname,stot,qtime,ctime,rtime,ttime,bck,addr,dreq,status,hrsp_2xx,hrsp_5xx,"
#: HAProxy's total time, which counts how long clients had nothing to ask.
WITH_IDLE_CLIENTS_MS = 5000


def table(requests, total_ms, earlier_tries_ms=0):
    """Return the statistics of a server whose name ends with ``-x7``, and of others."""
    connect_ms = min(1, total_ms - earlier_tries_ms)
    response_ms = total_ms - earlier_tries_ms - connect_ms
    times_ms = f"{earlier_tries_ms},{connect_ms},{response_ms},{WITH_IDLE_CLIENTS_MS}"
    return (
        f"{HEADER}\n"
        f"http-a,SERVE_REPLICA__a-Replica-x7,{requests},{times_ms},0,unix,,UP,9,9,\n"
        f"http-a,SERVE_REPLICA__a-Replica-other,{requests},0,1,2,3,0,10.0.0.2:9,,UP 1/2,9,9,\n"
        f"http-a,BACKEND,{requests},0,1,2,3,0,,7,UP,{requests},5,\n\n"
    )


@pytest.fixture
def answers(monkeypatch):
    """Return what HAProxy answers to the next questions."""
    answers: list[str | Exception] = []

    def ask(path, command, timeout_s):
        assert (path, command) == (PATH, b"show stat -1 6 -1")
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer.encode()

    monkeypatch.setattr(stats, "ask", ask)
    return answers


async def test_it_follows_a_server_and_forgets_it_when_haproxy_restarts(answers):
    answers += [
        table(0, 0),
        table(MIN_REQUESTS - 1, 10),
        table(MIN_REQUESTS, 100),
        table(200, 1),  # a new HAProxy
        table(200 + MIN_REQUESTS, 5),
    ]
    reports = HaproxyStats("-x7", PATH)
    seen = [await reports.read() for _ in range(5)]
    assert [one.mean_ms for one in seen] == [None, None, 100, None, 5]
    assert [one.outward_ms for one in seen] == [0, 0, 1, 0, 1]
    assert [one.answered for one in seen] == [0, MIN_REQUESTS - 1, 1, 0, MIN_REQUESTS]


@pytest.mark.parametrize(
    "answer",
    [
        AdminError("no such file"),
        "# pxname,svname\na,r-x7\n",
        f"{HEADER}\na,r-x7,many,0,0,0,0,0,,,UP,,,\n",
    ],
)
async def test_without_an_answer_it_says_so_once_and_not_at_once(
    answers, answer, caplog, monkeypatch
):
    reports = HaproxyStats("-x7", PATH)
    for after_s, records in ((15.0, 0), (0.0, 1), (0.0, 1)):
        monkeypatch.setattr(stats, "WARN_AFTER_S", after_s)
        answers.append(answer)
        assert await reports.read() == ProxyReport()
        assert len(caplog.records) == records


def test_the_server_is_found_by_the_end_of_its_name():
    expected = BackendStats(1000, 43.0, 41.0, 1, 2, (7, 1000, 5))
    assert parse_stats(table(1000, 43, 40), "-x7") == expected
    assert parse_stats(table(1000, 43, 40), "-gone") is None


async def test_nobody_serves_if_haproxy_has_no_replica_up(answers):
    proxy = "http-a,SERVE_PROXY_ACTOR,0,0,0,0,0,1,127.0.0.1:1,,UP,,,\n"
    up = table(1, 1) + proxy
    none, one = (
        up.replace(",UP", ",DOWN").replace("1:1,,DOWN", "1:1,,UP"),
        up.replace("UP 1/2", "no"),
    )
    answers += [up, none, one, "nonsense", AdminError("no such file")]
    found = [await HaproxyStats("-x7", PATH).nobody_serves() for _ in range(5)]
    assert found == [False, True, False, False, False]
