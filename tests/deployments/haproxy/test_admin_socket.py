"""The admin socket in front of HAProxy's; `test_supervisor` has a HAProxy behind it."""

import os
import stat
import threading
from pathlib import Path

from deployments.haproxy.admin_socket import AdminRelay, ask


def test_without_haproxy_it_has_its_own_answers_and_its_socket_is_for_its_user_alone(
    tmp_path: Path,
) -> None:
    path = tmp_path / "admin.sock"
    path.write_text("a predecessor's")
    own = {b"hello": lambda client: client.sendall(b"world")}
    relay = AdminRelay(path, tmp_path / "7.sock", own)
    relay.open()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    os.set_blocking(relay.fileno(), True)
    for command, answer in ((b"show info", b""), (b"hello", b"world"), (b"show info", b"")):
        thread = threading.Thread(target=relay.answer_next)
        thread.start()
        assert ask(path, command) == answer
        thread.join()
    relay.close()


def test_a_relay_is_in_charge_from_when_it_is_opened_until_a_successor_is(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "admin.sock", tmp_path / "elsewhere.sock"
    first = AdminRelay(path, path, {})
    assert not first.in_charge
    first.open()
    assert first.in_charge
    second = AdminRelay(path, path, {})
    assert first.in_charge
    second.open()
    assert (first.in_charge, second.in_charge) == (False, True)
    second.move(elsewhere)
    assert second.in_charge
    assert not path.exists()
    assert elsewhere.is_socket()
    for one in (first, second):
        one.close()
    assert [*tmp_path.iterdir()] == [elsewhere]
