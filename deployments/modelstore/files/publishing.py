"""Publish models to the folder of a remote: their files and the list of their digests."""

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from deployments.modelstore.errors import UntrustedFileError
from deployments.modelstore.files.safetensors_header import read_entries
from deployments.modelstore.names import MAX_FILES, SUMS, ModelName
from policy.errors import InvalidInputError


def publish(models: Mapping[ModelName, Sequence[Path]], root: Path) -> None:
    """Write each model's files below `root`, in the layout of a remote.

    A model's folder appears when it is complete. `InvalidInputError` or `UntrustedFileError` says
    which model cannot be published; then nothing is written.
    """
    for name, paths in models.items():
        _check(name, paths, root)
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=".publish-") as made:
        for name, paths in models.items():
            folder = Path(made) / name.path
            folder.mkdir(parents=True)
            lines = []
            for path in sorted(paths, key=lambda path: path.name):
                with open(shutil.copyfile(path, folder / path.name), "rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                lines.append(f"{digest}  {path.name}\n")
            (folder / SUMS).write_text("".join(lines))
        for name in models:
            (root / name.path).parent.mkdir(parents=True, exist_ok=True)
            try:
                # Unlike `shutil.move`, this replaces no folder that another process has published.
                os.rename(Path(made) / name.path, root / name.path)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
                raise _already_there(name, root) from error


def _check(name: ModelName, paths: Sequence[Path], root: Path) -> None:
    if (root / name.path).exists():
        raise _already_there(name, root)
    if not 1 <= len(paths) <= MAX_FILES:
        raise InvalidInputError(f"{name}: must have 1 to {MAX_FILES} files, not {len(paths)}")
    if len({path.name for path in paths}) < len(paths):
        raise InvalidInputError(f"{name}: two of its files have the same name")
    names = [tensor for path in paths for tensor in _tensors(name, path)]
    if not names:
        raise InvalidInputError(f"{name}: its files contain no tensor")
    if len(set(names)) < len(names):
        raise InvalidInputError(f"{name}: a tensor is in two of its files")


def _already_there(name: ModelName, root: Path) -> InvalidInputError:
    return InvalidInputError(
        f"{name}: is in {root} already; what a version contains never changes, so publish "
        "another version"
    )


def _tensors(name: ModelName, path: Path) -> list[str]:
    try:
        with open(path, "rb") as file:
            return [entry.name for entry in read_entries(file.fileno())]
    except (UntrustedFileError, OSError) as error:
        raise UntrustedFileError(f"{name}: {path}: {error}") from error
