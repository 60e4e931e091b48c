import gc
import json
import os
import subprocess
import sys
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

import sojourn
from deployments.modelstore.client import ask, list_models, open_model
from deployments.modelstore.errors import UnavailableError
from tests.support.models.model_stores import (
    MB,
    manager_thread,
    settings_for,
    stats,
    wait_until,
    wait_until_idle,
)
from tests.support.processes import unmodified_models as programs
from tests.support.waiting import LIMIT_S


@pytest.fixture
def store(tmp_path):
    with manager_thread(settings_for(tmp_path, remote=None)) as socket_path:
        yield socket_path


class Program:
    """A process that loads models by unmodified code."""

    def __init__(self, store, folder):
        module = "tests.support.processes.unmodified_models"
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, str(store), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, *words):
        print(*words, file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *error):
        with self._process:
            self._process.kill()


@pytest.mark.slow
def test_a_second_process_of_unmodified_code_adds_no_memory_for_weights(tmp_path):
    programs.save(tmp_path)
    weights_bytes = (tmp_path / "large" / "model.safetensors").stat().st_size
    expected = {
        load.__name__: programs.answer(load(tmp_path / "large")).sum(dtype=torch.float64).item()
        for load in programs.LOADERS
    }
    with (
        manager_thread(settings_for(tmp_path, remote=None, host_bytes=900 * MB)) as store,
        Program(store, tmp_path) as first,
        Program(store, tmp_path) as second,
    ):
        for name, right in expected.items():
            for program in (first, second):
                program.ask("load", name, "small")  # imports, caches, the allocator's pages
            first.ask("load", name, "large")
            before = first.ask("memory")
            added = second.ask("load", name, "large") + first.ask("memory") - before
            assert added <= 0.05 * weights_bytes
            assert first.ask("answer") == second.ask("answer") == pytest.approx(right, rel=1e-5)
            unchanged = second.ask("answer")
            first.ask("overwrite")
            assert first.ask("answer") != unchanged
            assert second.ask("answer") == unchanged


@given(st.lists(st.sampled_from(["in place", "renamed", "as it was"]), min_size=1, max_size=6))
@settings(max_examples=10)
def test_a_changed_file_is_not_served_stale(tmp_path_factory, changes):
    folder = tmp_path_factory.mktemp("changed")
    file = folder / "w.safetensors"
    save_file({"w": torch.zeros(1000)}, file)
    kept = []
    with manager_thread(settings_for(folder, remote=None)) as store:
        value = 0
        for change in changes:
            if change == "renamed":
                value += 1
                save_file({"w": torch.full((1000,), float(value))}, folder / "new")
                os.replace(folder / "new", file)
            elif change == "in place":
                value += 1
                with open(file, "r+b") as opened:
                    opened.seek(-4000, os.SEEK_END)
                    opened.write(torch.full((1000,), float(value)).numpy().tobytes())
            with sojourn.shared_weights(store):
                kept.append((value, load_file(file)["w"]))
            assert all(bool((tensor == then).all()) for then, tensor in kept)


def test_what_is_loaded_is_held_and_what_nobody_has_is_forgotten(store, tmp_path):
    torch.save({"a": torch.ones(10), "nested": [torch.zeros(3)]}, tmp_path / "w.pt")
    with sojourn.shared_weights(store) as sharing:
        state = torch.load(tmp_path / "w.pt")
        assert sharing.found_in == "file"
    (row,) = list_models(store)
    assert (row["leases"], row["disk_bytes"]) == (1, 0)
    nested = state["nested"][0]
    del state
    gc.collect()
    assert stats(store)["leases"] == 1
    assert nested.tolist() == [0, 0, 0]
    del nested
    gc.collect()
    wait_until_idle(store)
    hold, (file,) = open_model(row["name"], store)
    os.close(file.descriptor)
    hold.close()
    wait_until_idle(store)
    ask("evict", row["name"], store)
    assert list_models(store) == []


def test_a_file_that_does_not_fit_is_loaded_as_usual_and_the_log_says_so(tmp_path, caplog):
    save_file({"w": torch.ones(1000)}, tmp_path / "w.safetensors")
    settings = settings_for(tmp_path, host_bytes=1000)
    with manager_thread(settings) as store, sojourn.shared_weights(store):
        assert bool((load_file(tmp_path / "w.safetensors")["w"] == 1).all())
    assert "not shared" in caplog.text
    assert "1000" in caplog.text


def originals():
    return torch.load, nn.Module.load_state_dict, torch.UntypedStorage.from_file


def test_patches_end_with_the_last_use_also_after_an_error(store, tmp_path):
    before = originals()
    save_file({"w": torch.ones(10)}, tmp_path / "w.safetensors")
    inside, leave = threading.Barrier(3), threading.Barrier(3)

    def use():
        with sojourn.shared_weights(store), sojourn.shared_weights(store):
            inside.wait(LIMIT_S)
            load_file(tmp_path / "w.safetensors")
            leave.wait(LIMIT_S)

    threads = [threading.Thread(target=use) for _ in range(2)]
    for thread in threads:
        thread.start()

    def fail():
        with sojourn.shared_weights(store):
            inside.wait(LIMIT_S)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert originals() != before
    leave.wait(LIMIT_S)
    for thread in threads:
        thread.join(LIMIT_S)
    assert originals() == before
    load_file(tmp_path / "w.safetensors")
    assert stats(store)["opens"] == 2


def test_without_a_store_the_error_names_the_command(tmp_path):
    before = originals()
    with (
        pytest.raises(UnavailableError, match="sojourn store serve"),
        sojourn.shared_weights(tmp_path / "none.sock"),
    ):
        pass
    assert originals() == before


def test_tied_and_differing_parameters_stay_as_the_module_has_them(store, tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
            self.second.weight = self.first.weight
            self.low = nn.Parameter(torch.zeros(8, dtype=torch.float16))

    state = Tied().state_dict() | {"low": torch.ones(8)}
    torch.save(state, tmp_path / "w.pt")
    network = Tied()
    parameters = dict(network.named_parameters())
    with sojourn.shared_weights(store):
        network.load_state_dict(torch.load(tmp_path / "w.pt"))
        assert stats(store)["leases"] == 1
    assert network.second.weight is network.first.weight is parameters["first.weight"]
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, state[name].to(tensor.dtype))
    assert network.low.dtype == torch.float16
    wait_until(lambda: stats(store)["leases"] == 1)  # by the parameters
