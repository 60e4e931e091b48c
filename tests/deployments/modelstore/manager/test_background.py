import hashlib
import os
import queue
import threading

import numpy as np
import pytest
import safetensors.numpy

from deployments.modelstore.client import open_model
from deployments.modelstore.core.actions import Copy, Fault, Tier
from deployments.modelstore.errors import (
    FetchError,
    StoreError,
    UnavailableError,
    UnknownModelError,
)
from deployments.modelstore.files.disk import Disk
from deployments.modelstore.host_memory import HostMemory
from deployments.modelstore.manager import background as background_module
from deployments.modelstore.manager import manager as manager_module
from deployments.modelstore.manager.background import AT_ONCE, Background, Event
from deployments.modelstore.names import Blob, ModelName
from deployments.modelstore.tensors import load_state_dict
from tests.support.models.model_stores import (
    FILE,
    manager_thread,
    publish_models,
    settings_for,
    stats,
    wait_until,
)
from tests.support.waiting import LIMIT_S

CONTENT = safetensors.numpy.save({"a": np.random.default_rng(1).random(20_000)})
BLOB = Blob(hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))
NAME = ModelName("pytorch", "m", "1")
HALF = len(CONTENT) // 2


class Remote:
    """Sends a file in two halves, and calls `between` after the first.

    `faults` says which models it sends something else of: an error, or other bytes.
    """

    def __init__(self, between=lambda: None, **faults):
        self.between, self.faults, self.read_names = between, faults, []

    def size_bytes(self, name, file):
        return len(CONTENT)

    def read(self, name, file, offset):
        self.read_names.append(name.name)
        fault = self.faults.get(name.name)
        if isinstance(fault, StoreError):
            raise fault
        if fault is not None:
            yield fault[offset:]
            return
        if offset < HALF:
            yield CONTENT[offset:HALF]
            self.between()
            offset = HALF
        yield CONTENT[offset:]


class Core:
    def copied(self, blob, tier, seconds):
        return []

    def copy_failed(self, blob, tier, fault, error):
        assert fault is Fault.OTHER
        raise error


class Machine:
    def __init__(self, folder):
        self.disk, self.memory, self.stopped = Disk(folder), HostMemory(), threading.Event()

    def copy(self, remote, target=Tier.DISK, origins=((NAME, FILE),), source=Tier.REMOTE):
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        tiers = remote, self.disk, self.memory, None
        background = Background(Core(), *tiers, events.put, self.stopped)
        background.copy(Copy(BLOB, source, target), origins)
        events.get(timeout=LIMIT_S)()

    def has(self, tier):
        if tier is Tier.DISK:
            self.copy(None, Tier.HOST, source=Tier.DISK)
        return os.pread(self.memory.descriptor(BLOB), len(CONTENT), 0) == CONTENT


@pytest.fixture
def machine(tmp_path):
    machine = Machine(tmp_path)
    yield machine
    machine.memory.close()


on_both_tiers = pytest.mark.parametrize("target", [Tier.DISK, Tier.HOST])


@on_both_tiers
def test_a_download_ends_with_its_piece_when_the_store_stops(tmp_path, machine, target):
    with pytest.raises(FetchError, match="stopped"):
        machine.copy(Remote(machine.stopped.set), target)
    assert not list((tmp_path / "partial").iterdir())
    with pytest.raises(KeyError):
        machine.memory.descriptor(BLOB)


def test_a_read_of_the_disk_ends_with_its_piece_when_the_store_stops(machine):
    machine.copy(Remote())
    machine.stopped.set()
    with pytest.raises(FetchError, match="stopped"):
        machine.copy(None, Tier.HOST, source=Tier.DISK)
    machine.stopped.clear()
    assert machine.has(Tier.DISK)


@on_both_tiers
def test_a_broken_download_is_resumed_as_long_as_more_of_it_comes(machine, target):
    def break_off():
        raise FetchError("the network is gone")

    remote = Remote(break_off)
    machine.copy(remote, target)
    assert remote.read_names == [NAME.name] * 2
    assert machine.has(target)


def test_so_many_copies_run_at_once_and_each_in_its_turn(machine):
    release, running, most = threading.Semaphore(0), set(), []

    class Waiting(Remote):
        def read(self, name, file, offset):
            running.add(name)
            most.append(len(running))
            assert release.acquire(timeout=LIMIT_S)
            running.discard(name)
            raise FetchError("gone")

    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    tiers = Waiting(), machine.disk, machine.memory, None
    background = Background(Core(), *tiers, events.put, machine.stopped)
    for number in range(AT_ONCE + 4):
        name = ModelName("pytorch", str(number), "1")
        blob = Blob(f"{number:064}", 1)
        background.copy(Copy(blob, Tier.REMOTE, Tier.DISK), [(name, FILE)])
    wait_until(lambda: len(most) == AT_ONCE)
    for _ in range(AT_ONCE + 4):
        release.release()
        with pytest.raises(FetchError, match="gone"):
            events.get(timeout=LIMIT_S)()
    assert len(most) == AT_ONCE + 4
    assert max(most) == AT_ONCE


FAULTS = {
    "retired": UnknownModelError("the remote has no such file"),
    "replaced": safetensors.numpy.save({"a": np.zeros(20_000)}),
    "silent": FetchError("timed out"),
}
OTHERS = [(ModelName("pytorch", name, "1"), FILE) for name in FAULTS]


@on_both_tiers
@pytest.mark.parametrize("passed_by", [OTHERS[:1], OTHERS[1:2], OTHERS[:2]])
def test_models_that_no_longer_have_a_file_are_passed_by(machine, target, passed_by):
    remote = Remote(**FAULTS)
    machine.copy(remote, target, [*passed_by, (NAME, FILE), *OTHERS])
    assert machine.has(target)
    assert remote.read_names == [*(name.name for name, _ in passed_by), NAME.name]


OPENS = AT_ONCE + 3


@pytest.fixture
def cached(tmp_path):
    """A store whose disk has the model m."""
    publish_models(tmp_path)
    settings = settings_for(tmp_path)
    with manager_thread(settings) as store:
        load_state_dict("m", socket_path=store)
    return settings


def test_a_hanging_remote_holds_up_neither_the_disks_models_nor_the_end(cached, monkeypatch):
    released = threading.Event()
    remote = Remote(released.wait)  # hangs when a list of files is read
    monkeypatch.setattr(manager_module, "open_remote", lambda url: remote)
    monkeypatch.setattr(background_module, "CLOSE_WAIT_S", 0.01)
    errors = []

    def open_unknown(number):
        with pytest.raises(UnavailableError):
            open_model(f"unknown-{number}", socket_path=cached.socket)
        errors.append(number)

    opens = [threading.Thread(target=open_unknown, args=(number,)) for number in range(OPENS)]
    with manager_thread(cached) as store:
        for thread in opens:
            thread.start()
        wait_until(lambda: stats(store)["waiting"] == OPENS)
        hold, (file,) = open_model("m", socket_path=store, timeout_s=LIMIT_S)
        os.close(file.descriptor)
        assert hold.source == "disk"
    released.set()
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
