import json
import logging
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from deployments.errors import RequestError
from deployments.observability.request_info import RequestInfo
from deployments.observability.request_log import BURST_LINES, RequestLog, logger

PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
INFO = RequestInfo(b"id")


class Machine(logging.Handler):
    def __init__(self):
        super().__init__()
        self.now_s = 100.0
        self.lines: list[dict[str, Any]] = []
        self.levels: list[int] = []
        self.log = RequestLog("m", lambda: self.now_s)

    def failed(self, status, message="e", info=INFO, arrival_s=100.0):
        error = RequestError(message)
        error.status = status
        self.log.failed(error, info, arrival_s)

    def __enter__(self):
        logger.addHandler(self)
        logger.setLevel(logging.INFO)
        return self

    def __exit__(self, *_):
        logger.removeHandler(self)
        logger.setLevel(logging.NOTSET)

    def emit(self, record):
        message = record.getMessage()
        assert "\n" not in message
        self.lines.append(json.loads(message))
        self.levels.append(record.levelno)


def test_a_line_says_what_the_client_was_told_and_how_to_find_it():
    with Machine() as one:
        one.failed(503, "this replica is full", RequestInfo(b"id-7", PARENT, "alice"), 99.875)
        one.failed(500, 'bad\n"x"', RequestInfo(b"\xff", b"\xff" * 999))
    first, second = one.lines
    assert first == {
        "event": "request_failed",
        "model": "m",
        "status": 503,
        "error": "this replica is full",
        "request_id": "id-7",
        "waited_ms": 125.0,
        "token": "alice",
        "traceparent": PARENT.decode(),
    }
    assert second["error"] == 'bad\n"x"'
    assert (second["request_id"], second["traceparent"]) == ("ÿ", "ÿ" * 128)
    assert one.levels == [logging.INFO, logging.ERROR]


@given(st.lists(st.tuples(st.sampled_from([429, 500, 503]), st.integers(0, 40)), max_size=100))
@example([(503, 0)] * 13)
def test_every_failure_is_in_a_line_or_counted_by_one(failures):
    with Machine() as one:
        sent = dict.fromkeys((429, 500, 503), 0)
        for status, wait_ds in failures:
            one.now_s += 0.1 * wait_ds
            one.failed(status)
            sent[status] += 1
        one.now_s += 1.0
        counted = dict.fromkeys(sent, -1)  # the last line
        for status in sent:
            one.failed(status)
        for line in one.lines:
            counted[line["status"]] += 1 + line.get("left_out", 0)
    assert counted == sent


def test_overload_writes_few_lines():
    with Machine() as one:
        for _ in range(60_000):  # a minute
            one.now_s += 0.001
            one.failed(503)
        assert 60 <= len(one.lines) <= BURST_LINES + 60
        # One status does not keep another from its line.
        one.failed(500)
        assert one.lines[-1]["status"] == 500
