"""The list of experiments, and what a stranger makes of an answer."""

import socket
import threading
from itertools import pairwise

from benchmarks.resilience.experiments import EXPERIMENTS
from benchmarks.resilience.load import Target
from benchmarks.resilience.strangers import exchange


def test_each_experiment_has_a_name_of_its_own_and_says_what_it_does() -> None:
    names = [one.name for one in EXPERIMENTS]
    assert len(set(names)) == len(names)
    assert all(one.fault.__doc__ for one in EXPERIMENTS)


def test_experiments_share_services_where_they_can() -> None:
    """Starting a service takes longer than most experiments."""
    kinds = [one.kind for one in EXPERIMENTS if not one.fatal]
    changes = sum(before != after for before, after in pairwise(kinds))
    assert changes < len(set(kinds))
    assert [one.fatal for one in EXPERIMENTS] == sorted(one.fatal for one in EXPERIMENTS)


def answer_once(parts: list[bytes]) -> tuple[Target, threading.Thread]:
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]

    def run() -> None:
        with server:
            client, _ = server.accept()
            with client:
                client.recv(100)
                for part in parts:
                    client.sendall(part)

    thread = threading.Thread(target=run)
    thread.start()
    return Target("127.0.0.1", port, "m", 0.5, 99), thread


def test_everything_that_comes_back_is_seen_also_a_second_answer() -> None:
    one, two = (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n" + body for body in (b"ab", b"cd"))
    target, server = answer_once([one, two])
    assert exchange(target, b"GET / HTTP/1.1\r\n\r\n") == one + two
    server.join()


def test_nothing_comes_back_from_a_port_that_nobody_listens_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert exchange(Target("127.0.0.1", port, "m", 0.5, 99), b"x") == b""
