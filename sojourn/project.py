"""The project that `sojourn init` writes, and the config file of a single model."""

import json
import os
import re
from importlib.resources import files
from pathlib import Path
from string import Template

from deployments.config.user_config import parse_user_config
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective

#: Kinds of projects, and the package that each needs besides Sojourn.
TEMPLATES = {
    "image": "pillow",
    "onnx": "onnxruntime",
    "sklearn": "scikit-learn",
    "torch": "",
    "transformers": "transformers",
}

_IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:(?P<name>[A-Za-z_]\w*)")
#: The classes that serve a file, by its suffix.
_JOBLIB_CLASS = "sojourn.models:SklearnModel"
_FILE_CLASSES = {
    ".onnx": "sojourn.models:OnnxModel",
    ".joblib": _JOBLIB_CLASS,
    ".pkl": _JOBLIB_CLASS,
}
_FOLDER_CLASS = "sojourn.models:TransformersModel"


def starter_files(template: str) -> dict[str, bytes]:
    """Return the files of the project that `sojourn init` writes, by name."""
    config = one_model_config("model:Classifier", ServiceLevelObjective(100, 99), 2)
    found = {name: _read(name) for name in ("README.md", "test_model.py")}
    found |= {"model.py": _read(f"model_{template}.py"), "serve.yaml": config.encode()}
    if template == "onnx":
        found["model.onnx"] = _read("model.onnx")
    return found


def is_model(text: str) -> bool:
    """Return whether a text names a model, and not a config file."""
    path = Path(text)
    if path.is_dir() or path.suffix in _FILE_CLASSES:
        return True
    return ":" in text and not path.exists()


def one_model_config(
    model: str,
    sla: ServiceLevelObjective,
    max_replicas: int | None = None,
    *,
    trust: bool = False,
) -> str:
    """Return a config file in Ray Serve's schema that serves one model.

    `model` is a class, as ``module:Class``, or what a class of `sojourn.models` reads: a file of
    ONNX or joblib, or a folder of ``save_pretrained``; `trust` says whether reading it may run its
    code. By default there may be a replica for each CPU of this machine.

    Raises
    ------
    InvalidInputError
        There is no such model, or the SLA allows less than a request's way takes.
    """
    name, import_path, options = _class_of(model, trust)
    parse_user_config(
        {"sla": {"response_time_ms": sla.response_time_ms, "percentile": sla.percentile}}
    )
    return Template(_read("serve.yaml").decode()).substitute(
        name=name,
        import_path=import_path,
        options=json.dumps(options),
        max_replicas=max_replicas or os.cpu_count() or 1,
        response_time_ms=f"{sla.response_time_ms:.15g}",
        percentile=f"{sla.percentile:.15g}",
    )


def _class_of(model: str, trust: bool) -> tuple[str, str, dict[str, object]]:
    """Return the name, the class and the options of a model."""
    path = Path(model)
    import_path = _FOLDER_CLASS if path.is_dir() else _FILE_CLASSES.get(path.suffix)
    if trust and import_path != _JOBLIB_CLASS:
        raise InvalidInputError(f"--trust: is for a joblib file, which {model!r:.100} is not")
    if import_path is not None:
        if path.is_dir() and not (path / "config.json").exists():
            raise InvalidInputError(f"{model}: no config.json, which save_pretrained writes")
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.resolve().stem).lstrip("._-") or "model"
        trusted = {"trust": True} if trust else {}
        return name, import_path, {"path": str(path.resolve()), **trusted}
    match = _IMPORT_PATH.fullmatch(model)
    if match is None:
        raise InvalidInputError(f"a model's class is named module:Class, not {model!r:.100}")
    return match["name"].lower(), model, {}


def _read(name: str) -> bytes:
    return files("sojourn").joinpath("starter", name).read_bytes()
