import shutil

import pytest
import torch
from safetensors.torch import save_file

from deployments.modelstore.errors import UntrustedFileError
from deployments.modelstore.files.publishing import publish
from deployments.modelstore.names import ModelName
from policy.errors import InvalidInputError

CATS, DOGS = ModelName.parse("cats"), ModelName.parse("dogs@2")
FROZEN = {"frozen.weight": torch.arange(360_000.0)}


def write(path, tensors):
    path.parent.mkdir(exist_ok=True)
    save_file(tensors, path)
    return path


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
        ([write(tmp_path / "empty.safetensors", {})], InvalidInputError, "no tensor"),
    ):
        with pytest.raises(error, match=said):
            publish({CATS: [good], DOGS: paths}, root)
    assert not list(root.rglob("*.safetensors"))
    publish({DOGS: [good]}, root)
    with pytest.raises(InvalidInputError, match="publish another version"):
        publish({DOGS: [good]}, root)


def test_of_two_that_publish_a_name_at_once_the_second_is_refused(tmp_path, monkeypatch):
    first, second = (
        write(tmp_path / name / "w.safetensors", {"w": torch.full((3,), value)})
        for name, value in (("first", 1.0), ("second", 2.0))
    )
    root = tmp_path / "remote"
    copyfile = shutil.copyfile

    def overtaken(*paths):
        monkeypatch.undo()
        publish({CATS: [first]}, root)
        return copyfile(*paths)

    monkeypatch.setattr(shutil, "copyfile", overtaken)
    with pytest.raises(InvalidInputError, match="publish another version"):
        publish({CATS: [second]}, root)
    assert len([path for path in root.rglob("*") if path.is_file()]) == 2
    assert (root / CATS.path / "w.safetensors").read_bytes() == first.read_bytes()
