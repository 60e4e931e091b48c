"""What blocks: a remote that hangs holds up neither the disk's models nor the manager's end."""

import os
import threading

import pytest

from deployments.modelstore.client import ask, open_model
from deployments.modelstore.errors import FetchError, UnavailableError
from deployments.modelstore.manager import background as background_module
from deployments.modelstore.manager import manager as manager_module
from deployments.modelstore.manager.background import RESOLVES_AT_ONCE
from deployments.modelstore.tensors import load_state_dict
from tests.support.models.model_stores import (
    manager_thread,
    publish,
    settings_for,
    wait_until,
    weights,
)
from tests.support.waiting import LIMIT_S

OPENS = RESOLVES_AT_ONCE + 3


class HangingRemote:
    """Knows every model, and hangs when its list of files is read, until `released`."""

    def __init__(self):
        self.released = threading.Event()

    def size_bytes(self, name, file):
        return 1

    def read(self, name, file, offset):
        self.released.wait()
        raise FetchError("gone")
        yield b""


@pytest.fixture
def hanging(monkeypatch):
    remote = HangingRemote()
    monkeypatch.setattr(manager_module, "open_remote", lambda url: remote)
    monkeypatch.setattr(background_module, "CLOSE_WAIT_S", 0.01)
    yield
    remote.released.set()


@pytest.fixture
def cached(tmp_path):
    """A store whose disk has the model m."""
    publish(tmp_path / "remote", "m", {"model.safetensors": weights(1)})
    settings = settings_for(tmp_path)
    with manager_thread(settings) as store:
        load_state_dict("m", socket_path=store)
    return settings


def test_a_hanging_remote_holds_up_neither_the_disks_models_nor_the_end(cached, request):
    request.getfixturevalue("hanging")
    errors = []

    def open_unknown(number):
        with pytest.raises(UnavailableError):
            open_model(f"unknown-{number}", socket_path=cached.socket)
        errors.append(number)

    opens = [threading.Thread(target=open_unknown, args=(number,)) for number in range(OPENS)]
    with manager_thread(cached) as store:
        for thread in opens:
            thread.start()
        wait_until(lambda: ask("stats", socket_path=store)["waiting"] == OPENS)
        hold, (file,) = open_model("m", socket_path=store, timeout_s=LIMIT_S)
        os.close(file.descriptor)
        assert hold.source == "disk"
    for thread in opens:
        thread.join(LIMIT_S)
    assert sorted(errors) == list(range(OPENS))


def test_a_machine_without_room_for_a_thread_is_an_error_of_the_open(cached, monkeypatch):
    start = threading.Thread.start

    def none(thread):
        if thread.name.startswith("store-"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with manager_thread(cached) as store:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", none)
            with pytest.raises(FetchError, match="can't start new thread"):
                load_state_dict("m", socket_path=store)
        assert load_state_dict("m", socket_path=store).keys() == {"weight", "bias"}
