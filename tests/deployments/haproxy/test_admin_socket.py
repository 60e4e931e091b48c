"""The admin socket in front of HAProxy's."""

import os
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deployments.haproxy.admin_socket import AdminRelay, ask, process_at

INFO = b"Name: HAProxy\nPid: 4711\nMaxPid: 4711\n"


@contextmanager
def haproxy(path: Path, answers: dict[bytes, bytes]) -> Iterator[None]:
    """Answer as many commands as there are answers."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()

    def run() -> None:
        for _ in answers:
            client, _ = server.accept()
            with client:
                client.sendall(answers[client.recv(100)])

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        server.close()


@contextmanager
def relay(folder: Path, commands: int) -> Iterator[Path]:
    """Relay as many commands as are to come."""
    path = folder / "admin.sock"
    own = {b"hello": lambda client: client.sendall(b"world")}
    one = AdminRelay(path, folder / "7.sock", own)
    one.open()

    def run() -> None:
        for _ in range(commands):
            os.set_blocking(one.fileno(), True)
            one.answer_next()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield path
    finally:
        thread.join()
        one.close()


def test_only_the_process_id_is_changed(tmp_path: Path) -> None:
    answers = {b"show info\n": INFO, b"show stat\n": b"Pid: 4711\n" + b"x" * 300_000}
    with haproxy(tmp_path / "7.sock", answers), relay(tmp_path, 2) as path:
        assert ask(path, b"show info") == INFO.replace(b"\nPid: 4711", b"\nPid: %d" % os.getpid())
        assert ask(path, b"show stat") == answers[b"show stat\n"]


def test_without_haproxy_it_has_its_own_answers_and_its_socket_is_for_its_user_alone(
    tmp_path: Path,
) -> None:
    (tmp_path / "admin.sock").write_text("a predecessor's")
    with relay(tmp_path, 3) as path:
        assert [ask(path, b"show info"), ask(path, b"hello")] == [b"", b"world"]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert ask(path, b"show info") == b""


@pytest.mark.parametrize(("info", "pid"), [(INFO, 4711), (b"MaxPid: 4711\n", None)])
def test_the_process_id_is_haproxys_own(tmp_path: Path, info: bytes, pid: int | None) -> None:
    with haproxy(tmp_path / "7.sock", {b"show info\n": info}):
        assert process_at(tmp_path / "7.sock") == pid


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
