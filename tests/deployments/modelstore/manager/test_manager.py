import errno
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from safetensors.numpy import save_file

from deployments.modelstore import wire
from deployments.modelstore.client import ask, list_models, open_model
from deployments.modelstore.errors import (
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
    FILE,
    ManagerProcess,
    manager_thread,
    publish_models,
    right,
    settings_for,
    sign,
    stats,
    wait_until,
    wait_until_idle,
    weights,
)
from tests.support.waiting import LIMIT_S


@pytest.fixture
def remote(tmp_path):
    return publish_models(tmp_path)


@pytest.fixture
def store(tmp_path, remote):
    with manager_thread(settings_for(tmp_path)) as socket_path:
        yield socket_path


def load(store, name="m"):
    return load_state_dict(name, socket_path=store)


@pytest.mark.parametrize("stranger", ["client", "manager"])
def test_only_processes_of_one_user_talk_to_each_other(store, monkeypatch, stranger):
    def uid(connection):
        in_client = threading.current_thread() is threading.main_thread()
        # Each side is told that the other one is a stranger.
        return os.getuid() + (in_client == (stranger == "manager"))

    monkeypatch.setattr(wire, "peer_uid", uid)
    said = "another user" if stranger == "manager" else "store"
    with pytest.raises(UnavailableError, match=said):
        load(store)
    monkeypatch.undo()
    assert right(load(store))


def test_nonsense_is_answered_with_an_error_and_harms_nobody(store):
    before = len(os.listdir("/proc/self/fd"))
    for data in (
        *(b"\xff", b"[]", b"{", b"{}", b'{"do":"open"}', b'{"do":"open","name":3}', b'{"do":1}'),
        *(b'{"do":"open","name":"m","tier":"disk"}', b'{"do":"open","name":"m","tier":"x"}'),
        *(b'{"do":"evict","name":"m"}', b"[" * 50_000),
    ):
        with wire.connect(store) as connection:
            socket.send_fds(connection, [data], [0, 0, 0])
            message, _ = wire.receive(connection)
            assert "error" in message, data
    with wire.connect(store) as connection:
        socket.send_fds(connection, [b""], [0, 0, 0])
        assert wire.receive(connection) is None
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before)
    assert right(load(store))


def test_a_grant_that_waits_to_be_sent_keeps_its_files(store, remote):
    with wire.connect(store) as connection:
        load(store)
        wait_until_idle(store)
        for _ in range(600):  # more errors than the socket takes, so that the grant comes later
            wire.send(connection, {"do": "nothing"}, [])
        wire.send(connection, {"do": "open", "name": "m", "tier": "host"}, [])
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


def test_what_fails_unforeseen_or_for_lack_of_memory_is_answered_and_passes(store, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("unforeseen")

    def none(*arguments):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    load(store, "n")
    wait_until_idle(store)
    for do, name, method, failure, said in (
        ("open", "m", (Disk, "save_manifest"), fail, "unforeseen"),
        ("evict", "n", (Disk, "remove_manifest"), fail, "unforeseen"),
        ("open", "m", (HostMemory, "fill"), none, "allocate"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(*method, failure)
            with pytest.raises(StoreError, match=said):
                ask(do, name, store, timeout_s=LIMIT_S, disk=True, tier="host")
    assert right(load(store))


def test_a_model_in_use_is_neither_evicted_nor_replaced(store, remote, tmp_path):
    held = load(store)
    save_file(weights(9, floats=20_000), remote / "pytorch/m/1" / FILE)
    sign(remote / "pytorch/m/1")
    # Its holders and the list of its files agree.
    assert right(load(store))
    with pytest.raises(InUseError):
        ask("evict", "m", store)
    del held
    wait_until_idle(store)
    ask("evict", "m", store, disk=True)
    tiers = stats(store)["tiers"]
    assert tiers["host"]["used_bytes"] == tiers["disk"]["used_bytes"] == 0
    assert not any((tmp_path / "disk/blobs").iterdir())
    assert right(load(store), seed=9)


def test_a_restart_knows_the_models_on_disk_but_for_those_that_were_evicted(
    tmp_path, remote, monkeypatch
):
    monkeypatch.setattr(manager_module, "MODELS_PER_MESSAGE", 1)
    with manager_thread(settings_for(tmp_path)) as store:
        for other in (store, tmp_path / "other" / "store.sock"):
            with pytest.raises(StoreError, match="another manager"):
                Manager(settings_for(tmp_path, socket=other))
        for name in ("n", "m"):
            load(store, name)
        assert [model["name"] for model in list_models(store)] == ["pytorch/m@1", "pytorch/n@1"]
        wait_until_idle(store)
        ask("evict", "n", store)
    remote.rename(tmp_path / "elsewhere")
    with manager_thread(settings_for(tmp_path)) as store:
        assert right(load(store))
        with pytest.raises(UnknownModelError):
            load(store, "n")


def test_a_manager_that_does_not_answer_is_not_waited_for(tmp_path):
    path = tmp_path / "store.sock"
    with wire.make_socket() as listener:
        listener.bind(str(path))
        listener.listen()
        with pytest.raises(UnavailableError, match="does not answer"):
            ask("stats", socket_path=path, timeout_s=0.01)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(bytes(path.stat().st_size)),
        lambda path: path.unlink(),
        lambda path: path.with_suffix(".blocks").write_text("[]"),
    ],
)
def test_a_damaged_cached_file_is_never_served(tmp_path, remote, damage):
    with manager_thread(settings_for(tmp_path)) as store:
        assert right(load(store))
    [path] = [path for path in (tmp_path / "disk/blobs").iterdir() if not path.suffix]
    with manager_thread(settings_for(tmp_path)) as store:
        damage(path)
        assert right(load(store))


def test_memory_of_evicted_models_is_given_back(tmp_path, remote):
    # Only one of the two fits.
    with manager_thread(settings_for(tmp_path, host_bytes=100_000)) as store:
        assert right(load(store))
        assert right(load(store, "n"), seed=1)
        before = len(os.listdir("/proc/self/fd"))
        for number in range(6):
            wait_until_idle(store)
            assert right(load(store, "mn"[number % 2]), seed=number % 2)
        assert stats(store)["tiers"]["host"]["evictions"] == 7
        assert stats(store)["tiers"]["host"]["used_bytes"] <= 100_000
        wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before)


@pytest.mark.slow
def test_a_killed_manager_leaves_its_clients_their_weights_and_a_new_one_works_on(tmp_path, remote):
    with ManagerProcess(settings_for(tmp_path)) as manager:
        store = manager.settings.socket
        state = load(store)
        manager.kill()
        assert right(state)
        with pytest.raises(UnavailableError):
            load(store)
        manager.start()
        assert right(load(store))
        assert right(state)
        assert right(load(store, "n"), seed=1)


@pytest.mark.slow
def test_a_manager_killed_during_a_fetch_serves_no_wrong_byte_afterwards(tmp_path, remote):
    with http_files(remote) as (url, behavior):
        behavior.hang = threading.Event()
        with ManagerProcess(settings_for(tmp_path, remote=url)) as manager:
            store = manager.settings.socket
            with ThreadPoolExecutor() as pool:
                waiting = pool.submit(open_model, "m", socket_path=store)
                wait_until(lambda: behavior.hanging)
                manager.kill()
                with pytest.raises(UnavailableError):
                    waiting.result(LIMIT_S)
            behavior.hang.set()
            manager.start()
            assert right(load(store))
