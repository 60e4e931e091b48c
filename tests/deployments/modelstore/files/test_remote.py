import threading

import pytest

from deployments.modelstore.client import ask
from deployments.modelstore.errors import (
    FetchError,
    StoreError,
)
from deployments.modelstore.files import remote as remote_module
from deployments.modelstore.files.remote import open_remote
from deployments.modelstore.tensors import load_state_dict
from policy.errors import InvalidInputError
from tests.support.http.file_server import http_files
from tests.support.models.model_stores import manager_thread, publish, settings_for, weights

FILE = "model.safetensors"


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(remote_module, "RETRY_S", 0.05)
    monkeypatch.setattr(remote_module, "PIECE_BYTES", 10_000)


@pytest.fixture
def folder(tmp_path):
    return publish(tmp_path / "remote", "m", {FILE: weights(1, floats=20_000)})


@pytest.fixture
def http(tmp_path, folder):
    with http_files(tmp_path / "remote") as served:
        yield served


def load(tmp_path, url):
    with manager_thread(settings_for(tmp_path, remote=url)) as store:
        return load_state_dict("m", socket_path=store)


def test_http_in_pieces(tmp_path, http):
    url, behavior = http
    state = load(tmp_path, url)
    assert (state["weight"].numpy() == weights(1, floats=20_000)["weight"]).all()
    assert len(behavior.ranges) > 5
    assert max(last - first + 1 for first, last in behavior.ranges) <= 10_000


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["500", "cut", "hang"])
def test_a_remote_that_fails_is_an_error_and_works_again_later(tmp_path, http, monkeypatch, fault):
    url, behavior = http
    monkeypatch.setattr(remote_module, "REQUEST_TIMEOUT_S", 2.0)
    behavior.status = 500 if fault == "500" else None
    # The retries would complete a file that comes bit by bit.
    behavior.cut_after = 0 if fault == "cut" else None
    behavior.hang = threading.Event() if fault == "hang" else None
    with manager_thread(settings_for(tmp_path, remote=url)) as store:
        with pytest.raises(FetchError):
            load_state_dict("m", socket_path=store)
        assert not any((tmp_path / "disk/blobs").iterdir())
        assert ask("stats", socket_path=store)["tiers"]["host"]["used_bytes"] == 0
        behavior.status = behavior.cut_after = None
        if fault == "hang":
            behavior.hang.set()
        assert load_state_dict("m", socket_path=store).keys() == {"weight", "bias"}


@pytest.mark.parametrize("fault", ["lies about the length", "changes midway"])
def test_a_remote_with_something_else_is_refused(tmp_path, http, folder, fault):
    url, behavior = http
    if fault == "lies about the length":
        behavior.announced_extra = 7
    else:
        behavior.replacement = bytes(len((folder / FILE).read_bytes()))
        behavior.replace_after = 3
    with pytest.raises(StoreError):
        load(tmp_path, url)
    assert not any((tmp_path / "disk/blobs").iterdir())


@pytest.mark.parametrize("url", ["", "models", "/models", "file://host/models", "gopher://x/y"])
def test_a_wrong_url_is_refused(url):
    with pytest.raises(InvalidInputError, match="remote"):
        open_remote(url)
