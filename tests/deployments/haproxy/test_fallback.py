"""When Serve's own proxy gets the requests that no replica can take."""

from dataclasses import replace
from pathlib import Path

from deployments.haproxy.fallback import PATIENCE_S, Fallback, note_minimum
from deployments.haproxy.server_checks import Server

REPLICA = Server(
    backend="http-app",
    name="replica",
    backup=False,
    up=True,
    disabled=False,
    check="L7OK",
    failures=0,
    sessions=0,
)
DEAD = replace(REPLICA, up=False, check="L4CON")
CLOSED = replace(REPLICA, name="proxy", backup=True, up=False, disabled=True)
OPEN = replace(CLOSED, up=True, disabled=False)
OPENED = ["set server http-app/proxy state ready"]


NOWHERE = Path("/nonexistent")


def fallback() -> Fallback:
    return Fallback({"http-app"}, NOWHERE)


def test_clients_are_refused_until_patience_ends() -> None:
    followed = fallback()
    for now_s in (7.0, 8.0, 7.0 + PATIENCE_S - 0.1):
        assert followed.look([DEAD, CLOSED], now_s) == []
    assert followed.look([CLOSED], 7.0 + PATIENCE_S) == OPENED
    assert followed.look([OPEN], 8.0 + PATIENCE_S) == []


def test_a_replica_begins_patience_anew() -> None:
    followed = fallback()
    followed.look([DEAD, CLOSED], 0.0)
    assert followed.look([REPLICA, CLOSED], PATIENCE_S) == []
    assert followed.look([DEAD, CLOSED], PATIENCE_S + 1) == []
    assert followed.look([DEAD, CLOSED], 2 * PATIENCE_S) == []
    assert followed.look([DEAD, CLOSED], 2 * PATIENCE_S + 1) == OPENED


def test_the_proxy_is_left_as_soon_as_there_is_a_replica() -> None:
    assert fallback().look([REPLICA, OPEN], 0.0) == ["set server http-app/proxy state maint"]


def test_the_replica_of_one_application_does_not_serve_another() -> None:
    followed = Fallback({"http-app", "http-other"}, NOWHERE)
    servers = [DEAD, CLOSED, replace(REPLICA, backend="http-other")]
    followed.look(servers, 0.0)
    assert followed.look(servers, PATIENCE_S) == OPENED


def test_a_deployment_that_lifts_the_minimum_has_its_requests_held_at_once(tmp_path: Path) -> None:
    followed = Fallback({"http-app"}, tmp_path)
    assert followed.always_served == {"http-app"}
    note_minimum(tmp_path, "http-app", may_have_none=True)
    assert followed.always_served == set()
    assert followed.look([REPLICA, CLOSED], 0.0) == []
    assert followed.look([DEAD, CLOSED], 1.0) == OPENED
    assert followed.look([REPLICA, OPEN], 2.0) == []
    note_minimum(tmp_path, "http-app", may_have_none=False)
    assert followed.look([REPLICA, OPEN], 3.0) == ["set server http-app/proxy state maint"]


def test_a_node_without_haproxy_has_no_use_for_a_note() -> None:
    note_minimum(NOWHERE, "http-app", may_have_none=True)
    note_minimum(NOWHERE, "http-app", may_have_none=False)


def test_where_there_may_be_no_replicas_the_proxy_is_left_alone() -> None:
    followed = Fallback({"http-other"}, NOWHERE)
    for servers in ([OPEN], [DEAD, OPEN], [REPLICA, OPEN]):
        for now_s in (0.0, PATIENCE_S):
            assert followed.look(servers, now_s) == []
