"""Settings of all tests: repeatable Hypothesis examples, and a temporary folder per worker."""

import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("sojourn", derandomize=True, deadline=None, database=None)
settings.load_profile("sojourn")


@pytest.fixture(scope="session", autouse=True)
def _own_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep solved tables, which are cached in the temporary folder, from other runs and workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))
        yield
