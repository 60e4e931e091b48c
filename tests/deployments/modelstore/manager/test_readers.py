"""Other users of the machine open what they may, and nothing else."""

import ctypes
import os
import platform
import tempfile
import threading
from pathlib import Path

import pytest

from deployments.modelstore.client import ask, list_models
from deployments.modelstore.errors import StoreError, UnavailableError
from deployments.modelstore.manager.readers import OWNER_VARIABLE, Reader, Readers, trusted_owners
from deployments.modelstore.names import ModelName
from deployments.modelstore.tensors import load_state_dict
from policy.errors import InvalidInputError
from tests.support.models.model_stores import manager_thread, publish, settings_for, weights

NOBODY = 65534
#: The number of the system call on x86-64.
_SETRESUID = 117

needs_root = pytest.mark.skipif(
    os.getuid() != 0 or platform.machine() != "x86_64",
    reason="only root can act as another user, and the call's number is that of x86-64",
)


def as_user(uid, work):
    """Return what `work` returns, or the error it raises, in a thread that is another user's."""
    results = []

    def run():
        # The system call changes this thread alone; `os.setresuid` would change all of them.
        assert ctypes.CDLL(None).syscall(_SETRESUID, uid, uid, uid) == 0
        try:
            results.append(work())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results[0]


@pytest.fixture
def folder():
    # Other users cannot enter pytest's own folders.
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        os.chmod(made, 0o711)
        yield Path(made)


@needs_root
def test_a_reader_opens_what_it_may_and_can_do_nothing_else(folder):
    for name in ("open-one", "secret"):
        publish(folder / "remote", name, {"model.safetensors": weights(1)})
    readers = (Reader(NOBODY, "pytorch/open-*"),)
    with manager_thread(settings_for(folder, readers=readers)) as path:

        def load(name):
            return load_state_dict(name, socket_path=path)

        # What this imports, another user could perhaps not read.
        assert load("secret").keys() == {"weight", "bias"}
        assert as_user(NOBODY, lambda: load("open-one").keys()) == {"weight", "bias"}
        refused = as_user(NOBODY, lambda: load("secret"))
        assert isinstance(refused, StoreError)
        assert "may not read it" in str(refused)
        for forbidden in (
            lambda: ask("evict", "open-one", path),
            lambda: ask("pin", "open-one", path),
            lambda: ask("stats", socket_path=path),
            lambda: list_models(path),
        ):
            assert "only the store's owner" in str(as_user(NOBODY, forbidden))
        turned_away = as_user(NOBODY - 1, lambda: load("open-one"))
        assert isinstance(turned_away, UnavailableError)


@needs_root
def test_without_readers_nobody_else_reaches_the_socket(folder):
    publish(folder / "remote", "m", {"model.safetensors": weights(1)})
    with manager_thread(settings_for(folder)) as path:
        error = as_user(NOBODY, lambda: ask("stats", socket_path=path))
    assert isinstance(error, UnavailableError)
    assert "Permission denied" in str(error)


@needs_root
def test_another_users_manager_is_trusted_only_if_it_is_named(folder, monkeypatch):
    publish(folder / "remote", "m", {"model.safetensors": weights(1)})
    with manager_thread(settings_for(folder)) as path:
        monkeypatch.setattr(os, "getuid", lambda: NOBODY)  # of this client
        monkeypatch.setattr("deployments.modelstore.wire.peer_uid", lambda connection: 1234)
        with pytest.raises(UnavailableError, match=f"another user .1234.*{OWNER_VARIABLE}"):
            ask("stats", socket_path=path)


def test_whom_a_client_trusts(monkeypatch):
    monkeypatch.delenv(OWNER_VARIABLE, raising=False)
    assert trusted_owners() == {0, os.getuid()}
    monkeypatch.setenv(OWNER_VARIABLE, "nobody")
    assert trusted_owners() == {0, os.getuid(), NOBODY}
    monkeypatch.setenv(OWNER_VARIABLE, "no-such-user")
    with pytest.raises(InvalidInputError, match="no-such-user"):
        trusted_owners()


def test_a_pattern_matches_framework_and_name_whatever_the_version():
    readers = Readers([Reader.parse("nobody=pytorch/res*"), Reader.parse("7=*/*")])
    for name, may in (("resnet@3", True), ("onnx/resnet", False), ("vgg", False)):
        assert readers.may_open(NOBODY, ModelName.parse(name)) is may
        assert readers.may_open(7, ModelName.parse(name))
        assert readers.may_open(os.getuid(), ModelName.parse(name))
        assert not readers.may_open(8, ModelName.parse(name))
    assert not readers.admit(8)


@pytest.mark.parametrize("text", ["alice", "alice=", "alice=resnet", "alice=/x", "nobody-here=a/b"])
def test_a_wrong_reader_is_refused_in_one_line(text):
    with pytest.raises(InvalidInputError) as refused:
        Reader.parse(text)
    assert "\n" not in str(refused.value)
