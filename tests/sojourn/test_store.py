"""`sojourn store`: its commands against a manager in a thread."""

import json

import pytest
from safetensors.numpy import save_file

from sojourn.cli import main
from tests.support.models import emulated_device
from tests.support.models.model_stores import manager_thread, publish, settings_for, weights


@pytest.fixture
def store(tmp_path, monkeypatch):
    publish(tmp_path / "remote", "m", {"model.safetensors": weights(1)})
    with manager_thread(settings_for(tmp_path)) as socket_path:
        monkeypatch.setenv("SOJOURN_STORE", str(socket_path))
        yield socket_path


def run(capsys, *arguments):
    assert main(["store", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_model_through_all_commands(store, capsys):
    assert run(capsys, "ls") == {"models": []}
    warmed = run(capsys, "warm", "m")
    [listed] = run(capsys, "ls")["models"]
    assert listed["name"] == "pytorch/m@1"
    assert listed["host_bytes"] == listed["disk_bytes"] == warmed["bytes"]
    assert run(capsys, "evict", "m", "--disk")["evicted"]
    for command in ("ls", "stats"):
        assert main(["store", command]) == 0
    assert "budget_bytes" in capsys.readouterr().out
    stats = run(capsys, "stats")
    assert stats["tiers"]["host"]["evictions"] == stats["tiers"]["disk"]["evictions"] == 1
    assert stats["tiers"]["host"]["used_bytes"] == 0


def test_serve_with_a_device_that_cannot_be_used_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(emulated_device.BROKEN_VARIABLE, "1")
    arguments = ["--remote", (tmp_path / "remote").as_uri(), "--disk", str(tmp_path / "disk")]
    arguments += ["--socket", str(tmp_path / "run/store.sock"), "--device-bytes", "1000"]
    arguments += ["--device-driver", emulated_device.MODULE]
    assert main(["store", "serve", *arguments]) == 2
    assert capsys.readouterr().err.strip().endswith("--device-bytes: this device is broken")
    assert not (tmp_path / "run/store.sock").exists()


def test_published_models_are_served(tmp_path, monkeypatch, capsys):
    trained = tmp_path / "trained"
    trained.mkdir()
    save_file(weights(1), trained / "a.safetensors")
    remote = tmp_path / "remote"
    named = [f"one@2={trained / 'a.safetensors'}", f"two={trained}"]
    rows = run(capsys, "publish", *named, "--to", str(remote))["models"]
    assert [row["name"] for row in rows] == ["pytorch/one@2", "pytorch/two@1"]
    assert main(["store", "publish", f"three={trained}", "--to", str(remote)]) == 0
    assert "pytorch/three@1" in capsys.readouterr().out
    with manager_thread(settings_for(tmp_path)) as socket_path:
        monkeypatch.setenv("SOJOURN_STORE", str(socket_path))
        assert run(capsys, "warm", "one@2")["bytes"] == run(capsys, "warm", "two")["bytes"]
    for wrong, said in (("four", "NAME=PATH"), (f"fo/ur/x={trained}", "model name")):
        assert main(["store", "publish", wrong, "--to", str(remote)]) == 2
        assert said in capsys.readouterr().err
