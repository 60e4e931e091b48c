"""Find the files of a user's folder that a model needs: its modules, and what `load` reads.

``python -m deployments.models.model_files`` loads the model in a separate process, run in the
folder, and records each file that Python opens there. It reads one JSON object from standard input
and writes one to standard output.
"""

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import deployments
from deployments.config.replica_args import ModelConfig
from deployments.errors import StartError
from deployments.models.loading import load_model, make_model
from deployments.models.weights import WeightsLoader
from policy.errors import SojournError

#: Loading a large model from a slow disk takes minutes.
TIMEOUT_S = 600.0


def files_needed(
    config: ModelConfig, run_in: Path, folder: Path | None = None, *, load: bool = True
) -> list[Path]:
    """Load a model in a separate process; return the files of a folder that it opened.

    The model is imported from the working directory `run_in`; the `folder` is the same by default.
    Unless it is to `load`, the model is only imported and constructed. It is loaded on the CPU,
    unless the config says ``cuda``. Only files that Python opens are visible. A library that reads
    files itself, such as safetensors in Rust, leaves no trace, unless the model reads its weights
    as `deployments.models.base.Model.load` explains.

    The paths are relative to the folder, and sorted. Hidden files, virtual environments, and
    Sojourn itself are left out. `StartError`: the model does not load there.
    """
    question = {
        "model": config.model_dump(),
        "folder": str(folder or run_in),
        "load": load,
    }
    try:
        child = subprocess.run(
            [sys.executable, "-m", __name__],
            input=json.dumps(question),
            capture_output=True,
            text=True,
            cwd=run_in,
            env={
                **os.environ,
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONPATH": _python_path(None if folder == run_in else folder),
            },
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise StartError(
            f"model {config.import_path}: did not load within {TIMEOUT_S:.0f} s"
        ) from None
    if child.returncode:
        last_line = child.stderr.strip().rpartition("\n")[2]
        raise StartError(
            f"model {config.import_path}: ended its process with status {child.returncode}; "
            f"its last line: {last_line!r}"
        )
    answer = json.loads(child.stdout)
    if "error" in answer:
        raise StartError(answer["error"])
    return [Path(name) for name in answer["files"]]


def _python_path(but: Path | None) -> str:
    places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(place for place in places if place and Path(place).absolute() != but)


class _OpenedFiles:
    """The files that Python opens for reading, from now on."""

    def __init__(self) -> None:
        self.paths: set[str] = set()
        sys.addaudithook(self._note)  # it cannot be removed, so it needs a separate process

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open":
            return
        path, _, flags = arguments
        if isinstance(path, str | bytes) and not flags & (os.O_WRONLY | os.O_RDWR):
            self.paths.add(os.path.abspath(os.fsdecode(path)))


def _load(config: ModelConfig, load: bool) -> set[str]:
    opened = _OpenedFiles()
    weights = WeightsLoader(config.weights)
    config.load_profile()
    if load:
        device = "cuda" if config.device == "cuda" else "cpu"
        load_model(config.import_path, config.options, device, weights)
    else:
        make_model(config.import_path, config.options)
    modules = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return {
        *opened.paths,
        *(os.path.abspath(path) for path in modules if path),
        *([os.path.abspath(weights.source)] if weights.source else []),
    }


def _within(folder: Path, paths: set[str]) -> Sequence[str]:
    """Return the user's files among `paths`, relative to the folder."""
    source = Path(deployments.__file__).parents[1]
    packages = importlib.metadata.distribution("sojourn").read_text("top_level.txt") or ""
    own = [Path(sys.prefix), *(source / name for name in packages.split())]
    found = []
    for path in map(Path, paths):
        if not path.is_relative_to(folder) or any(path.is_relative_to(place) for place in own):
            continue
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
        if not hidden and "site-packages" not in parts and path.is_file():
            found.append("/".join(parts))
    return sorted(found)


def _main() -> None:
    question = json.load(sys.stdin)
    with redirect_stdout(sys.stderr):
        try:
            paths = _load(ModelConfig.model_validate(question["model"]), question["load"])
            answer = {"files": _within(Path(question["folder"]), paths)}
        except SojournError as error:
            answer = {"error": str(error)}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    _main()
