"""The one Ray of the tests in this folder."""

from collections.abc import Iterator

import pytest

from tests.support.processes.fragile_service import fragile_document
from tests.support.processes.services import Running, serving


@pytest.fixture(scope="package")
def one_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    # Ray starts with HAProxy's buffers for the first model, so it has the largest requests of all.
    first = fragile_document("SlowFragile", 1)
    with serving(tmp_path_factory.mktemp("one_ray") / "service.yaml", first) as running:
        yield running
