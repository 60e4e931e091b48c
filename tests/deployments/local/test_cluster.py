"""The child process of a local run, as far as it works without Ray."""

import io
import json
import socket
import warnings

import pytest

from deployments.errors import StartError
from deployments.local.serve_api import ServeApi

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray warns while it is imported
    from deployments.local import cluster


class Clock:
    """Stands in for `time`: sleeping takes no time but that of the clock."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(cluster, "time", clock)
    return clock


def wait_for_nobody(clock: Clock) -> None:
    """Wait for ten seconds for a model that does not listen."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        where = f"http://127.0.0.1:{probe.getsockname()[1]}"
        application = {"model": "digits", "application": "a", "route_prefix": ""}
        cluster._wait_until_ready(application, where, ServeApi("http://unused"), clock.now_s + 10)


def test_a_failed_start_is_told_within_a_second(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed_s = clock.now_s + 4.2
    monkeypatch.setattr(
        ServeApi, "failures", lambda _: {"a": "no weights"} if clock.now_s > failed_s else {}
    )
    with pytest.raises(StartError, match="digits did not start: no weights"):
        wait_for_nobody(clock)
    assert clock.now_s <= failed_s + 1.1


class Polls:
    """Stands in for the end of the input, which comes after some polls."""

    def __init__(self, count: int) -> None:
        self.left = count

    def is_alive(self) -> bool:
        return self.left > 0

    def join(self, _timeout_s: float) -> None:
        self.left -= 1


def test_a_deployment_that_fails_later_is_reported_once_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = {"a": "no weights"}
    seen = iter([{}, failed, failed, None, failed, {}, failed])

    def failures(_: ServeApi) -> dict[str, str]:
        found = next(seen)
        if found is None:
            raise OSError("busy")
        return found

    monkeypatch.setattr(ServeApi, "failures", failures)
    answers = io.StringIO()
    cluster._report_failures(ServeApi("http://unused"), Polls(7), answers)
    assert [json.loads(line) for line in answers.getvalue().splitlines()] == [
        {"step": "the deployment of a failed: no weights"}
    ] * 2
