"""Models that share tensors are written so that the store holds those once."""

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from deployments.modelstore.client import ask
from deployments.modelstore.errors import UntrustedFileError
from deployments.modelstore.files.publishing import publish
from deployments.modelstore.names import ModelName
from deployments.modelstore.tensors import load_state_dict
from policy.errors import InvalidInputError
from tests.support.models.model_stores import manager_thread, settings_for

BASE, CATS, DOGS = (ModelName.parse(name) for name in ("base", "cats", "dogs@2"))


def state(head: int) -> dict[str, torch.Tensor]:
    """Return weights whose frozen layers are those of every other model here."""
    frozen = torch.Generator().manual_seed(0)
    return {
        "frozen.weight": torch.randn((600, 600), generator=frozen),
        "frozen.scale": torch.randn(600, generator=frozen).to(torch.bfloat16),
        "head": torch.full((3,), float(head)),
    }


def write(folder, **states):
    folder.mkdir(exist_ok=True)
    for name, tensors in states.items():
        save_file(tensors, folder / f"{name}.safetensors")
    return {name: [folder / f"{name}.safetensors"] for name in states}


def equal(one, other):
    return one.keys() == other.keys() and all(
        one[key].dtype == other[key].dtype and torch.equal(one[key], other[key]) for key in one
    )


def test_the_store_holds_frozen_layers_of_fine_tuned_models_once(tmp_path):
    files = write(tmp_path / "trained", base=state(0), cats=state(1), dogs=state(2))
    models = dict(zip((BASE, CATS, DOGS), files.values(), strict=True))
    published = publish(models, tmp_path / "remote")
    frozen_bytes = 600 * 600 * 4 + 600 * 2
    assert [model.shared_bytes for model in published] == [frozen_bytes] * 3
    assert [model.size_bytes for model in published] == [frozen_bytes + 12] * 3
    with manager_thread(settings_for(tmp_path)) as socket_path:
        held = [load_state_dict(str(name), socket_path=socket_path) for name in models]
        used_bytes = ask("stats", socket_path=socket_path)["tiers"]["host"]["used_bytes"]
    assert all(equal(held[head], state(head)) for head in range(3))
    assert frozen_bytes < used_bytes < frozen_bytes + 3000


@settings(max_examples=25)
@given(
    st.lists(
        st.dictionaries(st.sampled_from("abc"), st.integers(0, 2), min_size=1),
        min_size=1,
        max_size=4,
    )
)
def test_every_model_has_its_own_tensors_whatever_is_shared(tmp_path_factory, models):
    folder = tmp_path_factory.mktemp("models")
    states = [
        {name: torch.full((4,), value, dtype=torch.int16) for name, value in model.items()}
        for model in models
    ]
    names = [ModelName.parse(f"m{number}") for number in range(len(states))]
    files = write(
        folder / "trained", **{name.name: s for name, s in zip(names, states, strict=True)}
    )
    publish({name: files[name.name] for name in names}, folder / "remote", min_shared_bytes=1)
    for name, expected in zip(names, states, strict=True):
        found = [load_file(path) for path in (folder / "remote" / name.path).glob("*.safetensors")]
        merged = {key: tensor for part in found for key, tensor in part.items()}
        assert sum(map(len, found)) == len(merged)
        assert equal(merged, expected)


def test_equal_bytes_of_another_shape_or_type_are_not_shared(tmp_path):
    zeros = np.zeros(300_000, np.float32)
    folder = tmp_path / "trained"
    folder.mkdir()
    for name, array in (
        ("base", zeros),
        ("cats", zeros.reshape(3, -1)),
        ("dogs", zeros.view("i4")),
    ):
        safetensors.numpy.save_file({"w": array}, folder / f"{name}.safetensors")
    models = {name: [folder / f"{name.name}.safetensors"] for name in (BASE, CATS, DOGS)}
    assert [model.shared_bytes for model in publish(models, tmp_path / "remote")] == [0, 0, 0]


def test_what_cannot_be_published_is_refused_and_leaves_nothing(tmp_path):
    files = write(tmp_path / "trained", base=state(0))["base"]
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"not a file of tensors")
    root = tmp_path / "remote"
    for paths, error, said in (
        ([], InvalidInputError, "has no safetensors file"),
        ([*files, *files], InvalidInputError, "in two of its files"),
        ([broken], UntrustedFileError, "broken.safetensors"),
        ([tmp_path / "missing.safetensors"], UntrustedFileError, "missing.safetensors"),
        (write(tmp_path / "trained", empty={})["empty"], InvalidInputError, "no tensor"),
    ):
        with pytest.raises(error, match=said):
            publish({CATS: files, BASE: paths}, root)
    assert not list(root.rglob("*.safetensors"))
    publish({BASE: files}, root)
    with pytest.raises(InvalidInputError, match="publish another version"):
        publish({BASE: files}, root)
