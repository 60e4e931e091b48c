"""Models are published whole or not at all, and the store holds equal files once."""

import pytest
import torch
from safetensors.torch import save_file

from deployments.modelstore.client import ask
from deployments.modelstore.errors import UntrustedFileError
from deployments.modelstore.files.publishing import publish
from deployments.modelstore.names import ModelName
from deployments.modelstore.tensors import load_state_dict
from policy.errors import InvalidInputError
from tests.support.models.model_stores import manager_thread, settings_for

CATS, DOGS = ModelName.parse("cats"), ModelName.parse("dogs@2")
FROZEN = {"frozen.weight": torch.arange(360_000.0)}


def write(path, tensors):
    path.parent.mkdir(exist_ok=True)
    save_file(tensors, path)
    return path


def test_the_store_holds_a_file_of_frozen_layers_once(tmp_path):
    frozen = write(tmp_path / "frozen.safetensors", FROZEN)
    heads = {
        name: write(tmp_path / name.name / "head.safetensors", {"head": torch.full((3,), value)})
        for name, value in ((CATS, 1.0), (DOGS, 2.0))
    }
    publish({name: [frozen, head] for name, head in heads.items()}, tmp_path / "remote")
    with manager_thread(settings_for(tmp_path)) as socket_path:
        held = [load_state_dict(str(name), socket_path=socket_path) for name in heads]
        used_bytes = ask("stats", socket_path=socket_path)["tiers"]["host"]["used_bytes"]
    for state, value in zip(held, (1.0, 2.0), strict=True):
        assert torch.equal(state["frozen.weight"], FROZEN["frozen.weight"])
        assert state["head"].tolist() == [value] * 3
    assert used_bytes < frozen.stat().st_size + 1000


def test_what_cannot_be_published_is_refused_and_leaves_nothing(tmp_path):
    good = write(tmp_path / "good.safetensors", FROZEN)
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"not a file of tensors")
    root = tmp_path / "remote"
    for paths, error, said in (
        ([], InvalidInputError, "must have 1 to 250 files, not 0"),
        ([good, good], InvalidInputError, "same name"),
        ([good, write(tmp_path / "a.safetensors", FROZEN)], InvalidInputError, "in two of its"),
        ([broken], UntrustedFileError, "broken.safetensors"),
        ([tmp_path / "missing.safetensors"], UntrustedFileError, "missing.safetensors"),
        ([write(tmp_path / "empty.safetensors", {})], InvalidInputError, "no tensor"),
    ):
        with pytest.raises(error, match=said):
            publish({CATS: [good], DOGS: paths}, root)
    assert not list(root.rglob("*.safetensors"))
    publish({DOGS: [good]}, root)
    with pytest.raises(InvalidInputError, match="publish another version"):
        publish({DOGS: [good]}, root)
