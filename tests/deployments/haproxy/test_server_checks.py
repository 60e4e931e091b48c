import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.haproxy.server_checks import (
    MAX_FAILURES,
    SETTLE_S,
    Server,
    ServerChecks,
    parse_servers,
)

TABLE = (
    "# pxname,svname,scur,status,check_status,check_health,check_rise,check_fall,bck,\n"
    "http-a,one,3,UP,L7OK,21,2,20,0,\nhttp-a,two,2,UP 18/20,* L7TOUT,19,2,20,0,\n"
    "http-a,three,1,DOWN 1/2,L4CON,1,2,20,1,\nhttp-a,four,,no check,,,,,0,\n\n"
)
ONE = Server("a", "one", False, True, "L7OK", 0, 5)
SILENT = ONE._replace(name="two", check="L7TOUT", failures=MAX_FAILURES)
servers = st.builds(
    Server,
    backend=st.sampled_from("ab"),
    name=st.sampled_from("1234"),
    backup=st.booleans(),
    up=st.booleans(),
    check=st.sampled_from(["L7OK", "L7TOUT", "L4TOUT", "L7STS"]),
    failures=st.sampled_from([0, MAX_FAILURES - 1, MAX_FAILURES]),
    sessions=st.integers(0, 3),
)
fleets = st.lists(servers, max_size=6, unique_by=lambda one: one.path)


def commands(*fleet: Server):
    return ServerChecks().look(list(fleet), 0.0)


def test_the_table_is_read():
    one = Server("http-a", "one", False, True, "L7OK", 0, 3)
    assert parse_servers(TABLE) == [
        one,
        one._replace(name="two", check="L7TOUT", failures=2, sessions=2),
        one._replace(name="three", backup=True, up=False, check="L4CON", sessions=1),
        one._replace(name="four", up=False, check="", sessions=0),
    ]


@pytest.mark.parametrize("check", ["L4CON", "L7STS"])
def test_a_replica_is_left_out_if_another_answers_or_if_it_refuses(check):
    down = ["set server a/two health down"]
    assert commands(ONE, SILENT) == commands(SILENT._replace(check=check)) == down
    assert commands(ONE, SILENT._replace(failures=MAX_FAILURES - 1)) == []


@given(fleets)
def test_the_last_replica_that_may_answer_is_never_left_out_for_its_silence(fleet: list[Server]):
    told = commands(*fleet)
    for one in fleet:
        if one.up and one.silent and f"set server {one.path} health down" in told:
            others = [other for other in fleet if other.backend == one.backend]
            assert any(other.up and not other.backup and not other.failures for other in others)


@given(fleets)
def test_only_the_requests_of_silent_replicas_that_are_down_are_sent_on(fleet: list[Server]):
    checks = ServerChecks()
    told = [*checks.look(fleet, 0.0), *checks.look(fleet, SETTLE_S)]
    sent_on = {one.path for one in fleet if f"shutdown sessions server {one.path}" in told}
    assert sent_on == {
        one.path for one in fleet if not one.up and "TOUT" in one.check and one.sessions
    }


def test_a_machine_that_is_gone_loses_its_requests_when_none_waits_for_a_connection():
    checks = ServerChecks()
    gone, back = SILENT._replace(check="L4TOUT", up=False), ONE._replace(name="two")
    assert checks.look([gone], 0) == checks.look([back], 1) == checks.look([gone], 2) == []
    assert checks.look([gone], 2 + SETTLE_S) == ["shutdown sessions server a/two"]
