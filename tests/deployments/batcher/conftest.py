import pytest

from deployments.batcher import crash_journal


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """The directory of the journals of replicas that are silent for seconds on a busy machine."""
    monkeypatch.setattr(crash_journal, "SILENT_S", 50.0)
    return tmp_path / "journals"
