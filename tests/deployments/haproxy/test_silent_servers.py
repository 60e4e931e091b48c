"""Whose requests are sent on."""

import pytest

from deployments.haproxy.silent_servers import (
    SETTLE_S,
    Server,
    SilentServers,
    StatisticsError,
    parse_servers,
)

TABLE = (
    "# pxname,svname,scur,status,check_status,\n"
    "http-a,one,3,UP,L7OK,\nhttp-a,two,2,DOWN 1/2,* L7TOUT,\nhttp-a,three,,no check,,\n\n"
)


def test_the_table_is_read() -> None:
    assert parse_servers(TABLE) == [
        Server("http-a/one", True, "L7OK", 3),
        Server("http-a/two", False, "L7TOUT", 2),
        Server("http-a/three", False, "", 0),
    ]


@pytest.mark.parametrize("table", ["# a,b\n1,2\n", TABLE.replace(",3,", ",x,"), TABLE + "x,y\n"])
def test_another_table_is_an_error(table: str) -> None:
    with pytest.raises(StatisticsError, match="not understood"):
        parse_servers(table)


def looks(check: str, *, up: bool = False, sessions: int = 1) -> list[float]:
    """Return at which of many times the server's requests are sent on."""
    servers = SilentServers()
    server = Server("a/b", up, check, sessions)
    times_s = [0.25 * n for n in range(20)]
    return [now_s for now_s in times_s if servers.look([server], now_s) == ["a/b"]]


def test_a_replica_that_leaves_a_check_unanswered_loses_its_requests_at_once() -> None:
    assert looks("L7TOUT")[0] == 0


def test_a_machine_that_is_gone_loses_them_when_no_request_waits_for_a_connection() -> None:
    assert looks("L4TOUT")[0] == SETTLE_S


@pytest.mark.parametrize("check", ["L4CON", "L7STS", "HANA", "L7OK", ""])
def test_a_replica_that_may_be_finishing_its_requests_keeps_them(check: str) -> None:
    assert looks(check) == []


def test_a_replica_that_is_up_or_empty_is_left_alone() -> None:
    assert looks("L7TOUT", up=True) == looks("L7TOUT", sessions=0) == []


def test_the_wait_begins_anew_after_a_recovery() -> None:
    servers = SilentServers()
    gone, back = Server("a/b", False, "L4TOUT", 1), Server("a/b", True, "L7OK", 1)
    assert servers.look([gone], 0) == servers.look([back], 1) == servers.look([gone], 2) == []
    assert servers.look([gone], 2 + SETTLE_S) == ["a/b"]
