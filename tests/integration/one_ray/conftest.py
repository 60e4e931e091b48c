"""The one Ray of the tests in this folder."""

import os

import pytest

from sojourn.cli import main
from tests.support.processes.fragile_replica import fragile_document
from tests.support.processes.services import ROOT, serving


@pytest.fixture(scope="package")
def project(tmp_path_factory):
    """Return the folder of a user's project, whose model replicas can import."""
    folder = tmp_path_factory.mktemp("project")
    assert main(["init", str(folder)]) == 0
    # So that there is a CPU for a second application, however slow this machine is.
    config = folder / "serve.yaml"
    config.write_text(config.read_text().replace("max_replicas: 2", "max_replicas: 1"))
    return folder


@pytest.fixture(scope="package")
def one_ray(tmp_path_factory, project):
    # Ray starts with HAProxy's buffers for the first model, so it has the largest requests of all.
    first = fragile_document("SlowFragile", 1)
    config = tmp_path_factory.mktemp("one_ray") / "service.yaml"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{project}{os.pathsep}{ROOT}")
        patch.setenv("SOJOURN_STORE", str(config.with_suffix(".sock")))
        with serving(config, first) as running:
            yield running
