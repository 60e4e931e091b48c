import contextlib
import os

import pytest
from safetensors.numpy import save_file

from sojourn.cli import main
from tests.support.models import emulated_device
from tests.support.models.model_stores import manager_thread, settings_for, weights


def open_files():
    """Return what the descriptors of this process refer to, without sockets."""
    names = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            names.append(os.readlink(f"/proc/self/fd/{number}"))
    return sorted(name for name in names if not name.startswith("socket:"))


def test_published_models_are_served_through_all_commands(
    tmp_path, monkeypatch, capsys, as_json, refused
):
    trained, remote = tmp_path / "trained", tmp_path / "remote"
    trained.mkdir()
    save_file(weights(1), trained / "a.safetensors")
    named = [f"one@2={trained / 'a.safetensors'}", f"two={trained}"]
    rows = as_json("store", "publish", *named, "--to", remote)["models"]
    assert [row["name"] for row in rows] == ["pytorch/one@2", "pytorch/two@1"]
    with manager_thread(settings_for(tmp_path)) as socket_path:
        monkeypatch.setenv("SOJOURN_STORE", str(socket_path))
        assert as_json("store", "ls") == {"models": []}
        warmed = as_json("store", "warm", "two")
        (listed,) = as_json("store", "ls")["models"]
        assert listed["name"] == "pytorch/two@1"
        assert listed["host_bytes"] == listed["disk_bytes"] == warmed["bytes"]
        opened = open_files()
        assert as_json("store", "warm", "two") == {**warmed, "name": "two", "files": 1}
        assert open_files() == opened
        assert as_json("store", "evict", "two", "--disk")["evicted"]
        for command in ("ls", "stats"):
            assert main(["store", command]) == 0
        printed = capsys.readouterr().out
        assert "budget_bytes" in printed
        assert "disk " in printed  # how long a copy from there takes
        tiers = as_json("store", "stats")["tiers"]
        assert tiers["host"]["evictions"] == tiers["disk"]["evictions"] == 1
        assert tiers["host"]["used_bytes"] == 0
        assert as_json("store", "warm", "one@2")["bytes"] == warmed["bytes"]


def test_metrics_for_prometheus_are_no_json(refused):
    assert "--prometheus: omit it, or --json" in refused("store", "stats", "--prometheus", "--json")


@pytest.mark.parametrize(("model", "said"), [("four", "NAME=PATH"), ("fo/ur/x=.", "model name")])
def test_what_is_no_name_and_path(refused, tmp_path, model, said):
    assert said in refused("store", "publish", model, "--to", tmp_path)


def test_serve_with_a_device_that_cannot_be_used(tmp_path, monkeypatch, refused):
    monkeypatch.setenv(emulated_device.BROKEN_VARIABLE, "1")
    arguments = ["--remote", (tmp_path / "remote").as_uri(), "--disk", tmp_path / "disk"]
    arguments += ["--socket", tmp_path / "run/store.sock", "--device-bytes", "1000"]
    line = refused("store", "serve", *arguments, "--device-driver", emulated_device.MODULE)
    assert line.endswith("--device-bytes: this device is broken")
    assert not (tmp_path / "run/store.sock").exists()
