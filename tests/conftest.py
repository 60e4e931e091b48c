"""Settings of all tests: repeatable Hypothesis examples, Ctrl-C, and folders of their own."""

import gc
import signal
import sys
import tempfile

import pytest
from hypothesis import settings

settings.register_profile(
    "sojourn", max_examples=50, derandomize=True, deadline=None, database=None
)
settings.load_profile("sojourn")

# A shell that runs the tests in the background has them ignore Ctrl-C, which some of them test.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish():
    """Spare each pass of garbage collection the walk over all that was imported."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _own_folders(tmp_path_factory):
    """Keep temporary files, and solved tables, from other runs and workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))
        yield


@pytest.fixture(autouse=True)
def _own_path(monkeypatch):
    """Undo what a command adds to the path: the folder in which a user's code is."""
    monkeypatch.setattr(sys, "path", [*sys.path])
