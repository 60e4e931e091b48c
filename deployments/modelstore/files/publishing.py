"""Publish models to the folder of a remote, storing shared tensors once.

The store holds equal files once, so tensors are shared by sharing files: tensors that a set of
models contains under the same name and with the same content go into a separate file, which is
copied to the folder of each of these models. The frozen layers of fine-tuned models become one
file.
"""

import hashlib
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from deployments.modelstore.errors import UntrustedFileError
from deployments.modelstore.names import MAX_FILES, SUMS, ModelName
from policy.errors import InvalidInputError

#: Fewer bytes than this are not worth a separate file.
MIN_SHARED_BYTES = 1 << 20
OWN_FILE = "model.safetensors"
_METADATA = {"format": "pt"}


@dataclass(frozen=True)
class PublishedModel:
    """A published model; `shared_bytes` counts its tensors that other published models share."""

    name: ModelName
    files: int
    size_bytes: int
    shared_bytes: int


@dataclass(frozen=True)
class _Tensor:
    """A tensor's name and the identity of its content: digest, data type and shape."""

    name: str
    content: tuple[str, str, tuple[int, ...]]
    size_bytes: int


def publish(
    models: Mapping[ModelName, Sequence[Path]],
    root: Path,
    min_shared_bytes: int = MIN_SHARED_BYTES,
) -> list[PublishedModel]:
    """Write models below `root`, in the layout of a remote.

    A model's folder appears when it is complete.

    Parameters
    ----------
    models : mapping of ModelName to sequence of Path
        The safetensors files of each model.
    root : Path
        The folder of a `file://` remote, or one to copy to a bucket.
    min_shared_bytes : int
        Tensors that the same models share stay in each model's own file if they have fewer bytes.

    Returns
    -------
    list of PublishedModel
        In the order of `models`.

    Raises
    ------
    InvalidInputError
        A model has no tensors, is there already, or has a tensor twice.
    UntrustedFileError
        A file is not safetensors.
    """
    with ExitStack() as stack:
        opened = {name: _open(name, paths, root, stack) for name, paths in models.items()}
        contents = {name: _contents(name, files) for name, files in opened.items()}
        groups = _shared(contents, min_shared_bytes)
        root.mkdir(parents=True, exist_ok=True)
        made = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=root, prefix=".publish-")))
        shared_files = _write_shared(groups, opened, made)
        published = []
        for name, tensors in contents.items():
            own = {tensor.name for tensor in tensors}
            folder = made / name.path
            folder.mkdir(parents=True)
            for holders, file in shared_files.items():
                if name in holders:
                    own -= {tensor.name for tensor in groups[holders]}
                    _link(file, folder / file.name)
            if own:
                save_file(_read(opened[name], own), folder / OWN_FILE, _METADATA)
            _sign(folder)
            size_bytes = sum(tensor.size_bytes for tensor in tensors)
            own_bytes = sum(tensor.size_bytes for tensor in tensors if tensor.name in own)
            files = len(list(folder.glob("*.safetensors")))
            published.append(PublishedModel(name, files, size_bytes, size_bytes - own_bytes))
        for name in models:
            (root / name.path).parent.mkdir(parents=True, exist_ok=True)
            shutil.move(made / name.path, root / name.path)
    return published


def _open(name: ModelName, paths: Sequence[Path], root: Path, stack: ExitStack) -> list[Any]:
    if (root / name.path).exists():
        raise InvalidInputError(
            f"{name}: is in {root} already; what a version contains never changes, so publish "
            "another version"
        )
    if not paths:
        raise InvalidInputError(f"{name}: has no safetensors file")
    opened = []
    for path in paths:
        try:
            opened.append(stack.enter_context(safe_open(path, framework="pt")))
        except (SafetensorError, OSError) as error:
            raise UntrustedFileError(f"{name}: {path}: {error}") from error
    return opened


def _contents(name: ModelName, files: Iterable[Any]) -> list[_Tensor]:
    tensors: dict[str, _Tensor] = {}
    for file in files:
        for key in file.keys():  # noqa: SIM118 - it is no mapping
            if key in tensors:
                raise InvalidInputError(f"{name}: tensor {key!r} is in two of its files")
            tensor = file.get_tensor(key)
            raw = tensor.reshape(-1).view(torch.uint8).numpy()
            content = (hashlib.sha256(raw).hexdigest(), str(tensor.dtype), tuple(tensor.shape))
            tensors[key] = _Tensor(key, content, raw.size)
    if not tensors:
        raise InvalidInputError(f"{name}: its files contain no tensor")
    return list(tensors.values())


def _shared(
    contents: Mapping[ModelName, Sequence[_Tensor]], min_shared_bytes: int
) -> dict[tuple[ModelName, ...], list[_Tensor]]:
    """Return the tensors that each set of two or more models shares, largest set first."""
    holders: dict[_Tensor, list[ModelName]] = defaultdict(list)
    for name, tensors in contents.items():
        for tensor in tensors:
            holders[tensor].append(name)
    groups: dict[tuple[ModelName, ...], list[_Tensor]] = defaultdict(list)
    for tensor, names in holders.items():
        groups[tuple(names)].append(tensor)
    large = [
        (sum(tensor.size_bytes for tensor in tensors), names)
        for names, tensors in groups.items()
        if len(names) > 1
    ]
    # One file is each model's own.
    chosen = sorted(large, reverse=True)[: MAX_FILES - 1]
    return {names: groups[names] for size, names in chosen if size >= max(1, min_shared_bytes)}


def _write_shared(
    groups: Mapping[tuple[ModelName, ...], Sequence[_Tensor]],
    opened: Mapping[ModelName, list[Any]],
    folder: Path,
) -> dict[tuple[ModelName, ...], Path]:
    written = {}
    for number, (names, tensors) in enumerate(groups.items()):
        written[names] = folder / f"shared-{number}.safetensors"
        wanted = {tensor.name for tensor in tensors}
        save_file(_read(opened[names[0]], wanted), written[names], _METADATA)
    return written


def _read(files: Iterable[Any], names: set[str]) -> dict[str, torch.Tensor]:
    return {
        key: file.get_tensor(key)
        for file in files
        for key in file.keys()  # noqa: SIM118 - it is no mapping
        if key in names
    }


def _link(file: Path, target: Path) -> None:
    try:
        os.link(file, target)
    except OSError:
        shutil.copyfile(file, target)


def _sign(folder: Path) -> None:
    lines = []
    for path in sorted(folder.glob("*.safetensors")):
        with open(path, "rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    (folder / SUMS).write_text("".join(lines))
