"""The project that `sojourn init` writes, and the config file of a single model."""

import os
import re
from importlib.resources import files
from string import Template

from deployments.config.user_config import parse_user_config
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective

#: The files of the project, which are package data.
FILES = ("README.md", "model.py", "serve.yaml", "test_model.py")

_IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:(?P<name>[A-Za-z_]\w*)")


def starter_file(name: str) -> str:
    """Return the content of a file of the project that `sojourn init` writes."""
    if name == "serve.yaml":
        return one_model_config("model:Classifier", ServiceLevelObjective(100, 99), 2)
    return _read(name)


def one_model_config(
    import_path: str, sla: ServiceLevelObjective, max_replicas: int | None = None
) -> str:
    """Return a config file in Ray Serve's schema that serves one model.

    Parameters
    ----------
    import_path : str
        The model's class, as ``module:Class``.
    sla : ServiceLevelObjective
    max_replicas : int, optional
        By default one for each CPU of this machine.

    Raises
    ------
    InvalidInputError
        The import path has another form, or the SLA allows less than a request's way takes.
    """
    match = _IMPORT_PATH.fullmatch(import_path)
    if match is None:
        raise InvalidInputError(f"a model's class is named module:Class, not {import_path!r:.100}")
    parse_user_config(
        {"sla": {"response_time_ms": sla.response_time_ms, "percentile": sla.percentile}}
    )
    return Template(_read("serve.yaml")).substitute(
        name=match["name"].lower(),
        import_path=import_path,
        max_replicas=max_replicas or os.cpu_count() or 1,
        response_time_ms=f"{sla.response_time_ms:.15g}",
        percentile=f"{sla.percentile:.15g}",
    )


def _read(name: str) -> str:
    return files("sojourn").joinpath("starter", name).read_text(encoding="utf-8")
