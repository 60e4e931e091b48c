"""The manager's process: faults of clients, of itself, of the disk and of memory."""

import errno
import gc
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
import torch
from safetensors.numpy import save_file

from deployments.modelstore import wire
from deployments.modelstore.client import ask, list_models, open_model
from deployments.modelstore.errors import (
    FetchError,
    InUseError,
    StoreError,
    UnavailableError,
    UnknownModelError,
)
from deployments.modelstore.files.disk import Disk
from deployments.modelstore.host_memory import HostMemory
from deployments.modelstore.manager import manager as manager_module
from deployments.modelstore.manager.manager import Manager
from deployments.modelstore.tensors import load_state_dict
from tests.support.http.file_server import http_files
from tests.support.models.model_stores import (
    ManagerProcess,
    manager_thread,
    publish,
    settings_for,
    sign,
    wait_until,
    weights,
)
from tests.support.waiting import LIMIT_S

FILE = "model.safetensors"
#: Opens a model, says so, and waits to be killed.
HOLDER = """
import sys, pathlib
from deployments.modelstore.client import open_model
state = open_model(sys.argv[1], socket_path=pathlib.Path(sys.argv[2]))
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def remote(tmp_path):
    for seed, name in enumerate(("m", "n")):
        publish(tmp_path / "remote", name, {FILE: weights(seed, floats=20_000)})
    return tmp_path / "remote"


def load(store, name="m"):
    return load_state_dict(name, socket_path=store)


def right(state, seed=0):
    return bool((state["weight"].numpy() == weights(seed, floats=20_000)["weight"]).all())


def memory_of(store, name="m"):
    """Return which memory the store serves a model from."""
    _, (file,) = open_model(name, socket_path=store)
    try:
        status = os.fstat(file.descriptor)
        return status.st_dev, status.st_ino
    finally:
        os.close(file.descriptor)


def stats(store):
    return ask("stats", socket_path=store)


@contextmanager
def holder_process(store, name="m"):
    arguments = [sys.executable, "-c", HOLDER, name, os.fspath(store)]
    process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_two_managers_on_one_socket_or_one_disk(tmp_path, remote):
    with manager_thread(settings_for(tmp_path)):
        with pytest.raises(StoreError, match="another manager"):
            Manager(settings_for(tmp_path))
        with pytest.raises(StoreError, match="another manager"):
            Manager(settings_for(tmp_path, socket=tmp_path / "other" / "store.sock"))
    with manager_thread(settings_for(tmp_path)) as store:
        assert right(load(store))


@pytest.mark.parametrize("stranger", ["client", "manager"])
def test_only_processes_of_one_user_talk_to_each_other(tmp_path, remote, monkeypatch, stranger):
    def uid(connection):
        in_client = threading.current_thread() is threading.main_thread()
        # Each side is told that the other one is a stranger.
        return os.getuid() + (in_client == (stranger == "manager"))

    with manager_thread(settings_for(tmp_path)) as store:
        monkeypatch.setattr(wire, "peer_uid", uid)
        expected = "another user" if stranger == "manager" else "store"
        with pytest.raises(UnavailableError, match=expected):
            load(store)
        monkeypatch.undo()
        assert right(load(store))


@pytest.mark.parametrize(
    "data",
    [b"\xff", b"[]", b"{", b"{}", b'{"do":"open"}', b'{"do":"open","name":3}', b'{"do":1}',
     b'{"do":"open","name":"m","tier":"disk"}', b'{"do":"open","name":"m","tier":"x"}',
     b'{"do":"evict","name":"m"}', b"[" * 50_000],
)  # fmt: skip
def test_nonsense_is_answered_with_an_error_and_harms_nobody(tmp_path, remote, data):
    with manager_thread(settings_for(tmp_path)) as store:
        with wire.connect(store) as connection:
            connection.send(data)
            message, _ = wire.receive(connection)
            assert "error" in message
        assert right(load(store))


def test_a_grant_that_waits_to_be_sent_keeps_its_files(tmp_path, remote):
    with manager_thread(settings_for(tmp_path)) as store, wire.connect(store) as connection:
        load(store)
        wait_until(lambda: stats(store)["leases"] == 0)
        for _ in range(600):  # more errors than the socket takes, so that the grant comes later
            wire.send(connection, {"do": "nothing"}, [])
        wire.send(connection, {"do": "open", "name": "m"}, [])
        wait_until(lambda: stats(store)["leases"] == 1)
        with pytest.raises(InUseError):
            ask("evict", "m", store)
        load(store, "n")
        while "granted" not in (received := wire.receive(connection))[0]:
            assert "error" in received[0]
        [descriptor] = received[1]
        content = (remote / "pytorch/m/1" / FILE).read_bytes()
        assert os.pread(descriptor, len(content) + 1, 0) == content
        os.close(descriptor)


def test_a_descriptor_sent_by_a_client_is_closed(tmp_path, remote):
    with manager_thread(settings_for(tmp_path)) as store:
        before = len(os.listdir("/proc/self/fd"))
        with wire.connect(store) as connection:
            wire.send(connection, {"do": "stats"}, [0, 0, 0])
            wire.receive(connection)
        wait_until(lambda: len(os.listdir("/proc/self/fd")) == before)


def test_a_manager_that_does_not_answer_is_not_waited_for(tmp_path):
    path = tmp_path / "store.sock"
    with wire.make_socket() as listener:
        listener.bind(str(path))
        listener.listen()
        with pytest.raises(UnavailableError, match="does not answer"):
            ask("stats", socket_path=path, timeout_s=0.01)


def test_a_model_in_use_is_not_evicted(tmp_path, remote):
    with manager_thread(settings_for(tmp_path)) as store:
        state = load(store)
        with pytest.raises(InUseError):
            ask("evict", "m", store)
        del state
        wait_until(lambda: stats(store)["leases"] == 0)
        ask("evict", "m", store, disk=True)
        tiers = stats(store)["tiers"]
        assert tiers["host"]["used_bytes"] == tiers["disk"]["used_bytes"] == 0
        assert not any((tmp_path / "disk/blobs").iterdir())
        assert right(load(store))


def test_a_list_of_files_that_was_evicted_stays_away_after_a_restart(tmp_path, remote):
    with manager_thread(settings_for(tmp_path)) as store:
        load(store)
        save_file(weights(9, floats=20_000), remote / "pytorch/m/1" / FILE)
        sign(remote / "pytorch/m/1")
        wait_until(lambda: stats(store)["leases"] == 0)
        ask("evict", "m", store)
    with manager_thread(settings_for(tmp_path)) as store:
        assert right(load(store), seed=9)


def test_a_model_on_disk_opens_without_its_remote(tmp_path, remote):
    with manager_thread(settings_for(tmp_path)) as store:
        assert right(load(store))
    remote.rename(tmp_path / "elsewhere")
    with manager_thread(settings_for(tmp_path)) as store:
        assert right(load(store))
        with pytest.raises(UnknownModelError):
            load(store, "n")


@pytest.mark.parametrize("damage", ["flipped", "gone", "tags"])
def test_a_damaged_cached_file_is_never_served(tmp_path, remote, damage):
    with manager_thread(settings_for(tmp_path)) as store:
        assert right(load(store))
    blobs = tmp_path / "disk" / "blobs"
    [path] = [path for path in blobs.iterdir() if not path.suffix]
    with manager_thread(settings_for(tmp_path)) as store:
        if damage == "flipped":
            content = path.read_bytes()
            path.write_bytes(content[:5000] + bytes([content[5000] ^ 1]) + content[5001:])
        elif damage == "gone":
            path.unlink()
        else:
            path.with_suffix(".blocks").write_text("[]")
        assert right(load(store))


def test_a_long_list_of_models_comes_in_parts(tmp_path, remote, monkeypatch):
    monkeypatch.setattr(manager_module, "MODELS_PER_MESSAGE", 1)
    with manager_thread(settings_for(tmp_path)) as store:
        for name in ("n", "m"):
            load(store, name)
        names = [model["name"] for model in list_models(store)]
        assert names == ["pytorch/m@1", "pytorch/n@1"]


@pytest.mark.parametrize("do", ["evict", "open"])
def test_a_request_that_fails_unforeseen_is_answered_and_the_next_is_served(
    tmp_path, remote, monkeypatch, do
):
    def fail(*arguments):
        raise RuntimeError("unforeseen")

    with manager_thread(settings_for(tmp_path)) as store:
        load(store, "n")
        wait_until(lambda: stats(store)["leases"] == 0)
        with monkeypatch.context() as patch:
            patch.setattr(Disk, "remove_manifest", fail)
            patch.setattr(Disk, "save_manifest", fail)
            with pytest.raises(StoreError, match="unforeseen"):
                ask(do, "m" if do == "open" else "n", store, timeout_s=LIMIT_S, disk=True)
        assert right(load(store))


def test_a_disk_without_room_for_a_list_of_files_is_passed_by(
    tmp_path, remote, monkeypatch, caplog
):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with manager_thread(settings_for(tmp_path)) as store:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            assert right(load(store))
        assert stats(store)["copies"][0]["target"] == "host"
        assert "m@1: its list of files is not kept" in caplog.text
        assert not any((tmp_path / "disk/partial").iterdir())
        assert right(load(store, "n"), seed=1)
        assert stats(store)["tiers"]["disk"]["blobs"] == 1


def test_no_memory_is_an_error_that_passes(tmp_path, remote, monkeypatch):
    @contextmanager
    def none(self, blob):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")
        yield

    with manager_thread(settings_for(tmp_path)) as store:
        with monkeypatch.context() as patch:
            patch.setattr(HostMemory, "fill", none)
            with pytest.raises(FetchError, match="allocate"):
                load(store)
        assert right(load(store))


def test_memory_of_evicted_models_is_given_back(tmp_path, remote):
    """Eight opens of two models, of which only one fits, leave no descriptor behind."""
    with manager_thread(settings_for(tmp_path, host_bytes=100_000)) as store:
        assert right(load(store))
        assert right(load(store, "n"), seed=1)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            wait_until(lambda: stats(store)["leases"] == 0)
            assert right(load(store))
            wait_until(lambda: stats(store)["leases"] == 0)
            assert right(load(store, "n"), seed=1)
        assert stats(store)["tiers"]["host"]["evictions"] == 7
        assert stats(store)["tiers"]["host"]["used_bytes"] <= 100_000
        wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before)


def test_a_version_replaced_while_it_is_open_stays_for_its_holder(tmp_path, remote):
    with manager_thread(settings_for(tmp_path)) as store:
        held = load(store)
        save_file(weights(9, floats=20_000), remote / "pytorch/m/1" / FILE)
        sign(remote / "pytorch/m/1")
        # What is known of a model is what its holders have.
        assert right(load(store))
        with pytest.raises(InUseError):
            ask("evict", "m", store, disk=True)
        before = {name: tensor.clone() for name, tensor in held.items()}
        del held
        gc.collect()
        wait_until(lambda: stats(store)["leases"] == 0)
        ask("evict", "m", store, disk=True)
        assert right(before)
        assert right(load(store), seed=9)


@pytest.mark.slow
def test_a_client_killed_while_it_holds_a_model_gives_it_back(tmp_path, remote):
    with manager_thread(settings_for(tmp_path)) as store:
        with holder_process(store) as process:
            assert process.stdout.readline() == "open\n"
            assert stats(store)["leases"] == 1
            process.send_signal(signal.SIGKILL)
            wait_until(lambda: stats(store)["leases"] == 0)
        ask("evict", "m", store)
        assert stats(store)["tiers"]["host"]["used_bytes"] == 0


@pytest.mark.slow
def test_a_killed_manager_leaves_its_clients_their_weights_and_a_new_one_works_on(tmp_path, remote):
    with ManagerProcess(settings_for(tmp_path)) as manager:
        store = manager.settings.socket
        state = load(store)
        expected = state["weight"].clone()
        memory = memory_of(store)
        manager.kill()
        assert torch.equal(state["weight"], expected)
        with pytest.raises(UnavailableError):
            load(store)
        manager.start()
        assert right(load(store))
        assert torch.equal(state["weight"], expected)
        assert stats(store)["taken_over"] == 1
        assert memory_of(store) == memory
        assert right(load(store, "n"), seed=1)
        assert stats(store)["taken_over"] == 1


@pytest.mark.slow
def test_a_manager_killed_during_a_fetch_serves_no_wrong_byte_afterwards(tmp_path, remote):
    with http_files(remote) as (url, behavior):
        behavior.hang = threading.Event()
        with ManagerProcess(settings_for(tmp_path, remote=url)) as manager:
            store = manager.settings.socket
            errors = []

            def wait():
                try:
                    open_model("m", socket_path=store)
                except UnavailableError as error:
                    errors.append(error)

            waiting = threading.Thread(target=wait)
            waiting.start()
            wait_until(lambda: behavior.hanging)
            manager.kill()
            waiting.join(LIMIT_S)
            assert len(errors) == 1
            behavior.hang.set()
            manager.start()
            assert right(load(store))
