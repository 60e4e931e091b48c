"""Threads for work that blocks: nothing is lost, and what blocks is not waited for."""

import queue
import threading

import pytest

from deployments.modelstore.manager.workers import Workers
from tests.support.waiting import LIMIT_S


@pytest.fixture
def events():
    return queue.SimpleQueue()


def test_work_that_fails_is_reported_like_work_that_is_done(events):
    def fail():
        raise KeyError("lost")

    workers = Workers("work", 1, events.put)
    for work in (fail, lambda: "done", fail):
        workers.submit(work, lambda error: f"failed: {error!r}")
    reported = [events.get(timeout=LIMIT_S) for _ in range(3)]
    assert reported == ["failed: KeyError('lost')", "done", "failed: KeyError('lost')"]
    workers.stop()
    workers.join()


def test_work_that_blocks_holds_up_no_more_than_its_thread_and_is_not_waited_for(events):
    blocked, begun = threading.Event(), threading.Semaphore(0)

    def block():
        begun.release()
        blocked.wait()
        return "late"

    workers = Workers("work", 2, events.put)
    workers.submit(block, repr)
    workers.submit(lambda: "done", repr)
    assert events.get(timeout=LIMIT_S) == "done"
    workers.submit(block, repr)
    for _ in range(2):
        assert begun.acquire(timeout=LIMIT_S)
    workers.submit(lambda: "never", repr)
    workers.stop()
    workers.join(end_s=0.0)
    blocked.set()
    workers.join()
    assert [events.get(timeout=LIMIT_S) for _ in range(2)] == ["late", "late"]
    assert events.empty()


def test_a_machine_without_room_for_a_thread_is_an_error_of_the_work(events, monkeypatch):
    def none(thread):
        raise RuntimeError("can't start new thread")

    workers = Workers("work", 2, events.put)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none)
        workers.submit(lambda: "done", str)
        assert events.get(timeout=LIMIT_S) == "can't start new thread"
    workers.submit(lambda: "done", str)
    assert events.get(timeout=LIMIT_S) == "done"
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none)
        workers.submit(lambda: "done by the other", str)
        assert events.get(timeout=LIMIT_S) == "done by the other"
    workers.stop()
    workers.join()
