import io
import json
import socket
from unittest import mock

import pytest

from deployments.errors import StartError
from deployments.local import cluster


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def monotonic(self):
        return self.now_s

    def sleep(self, duration_s):
        self.now_s += duration_s


def test_a_failed_start_is_told_within_a_second(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(cluster, "time", clock)
    failed_s = clock.now_s + 4.2
    api = mock.Mock()
    api.failures = lambda: {"a": "no weights"} if clock.now_s > failed_s else {}
    application = {"model": "digits", "application": "a", "route_prefix": ""}
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        where = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(StartError, match="digits did not start: no weights"):
            cluster._wait_until_ready(application, where, api, clock.now_s + 10)
    assert clock.now_s <= failed_s + 1.1


def test_a_deployment_that_fails_later_is_reported_once_each_time():
    failed = {"a": "no weights"}
    seen = [{}, failed, failed, OSError("busy"), failed, {}, failed]
    api, answers = mock.Mock(**{"failures.side_effect": seen}), io.StringIO()
    ended = mock.Mock(**{"is_alive.side_effect": [*len(seen) * [True], False]})
    cluster._report_failures(api, ended, answers)
    assert [json.loads(line) for line in answers.getvalue().splitlines()] == [
        {"step": "the deployment of a failed: no weights"}
    ] * 2
