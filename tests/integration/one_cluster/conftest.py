"""The cluster that all modules of this folder share. Each deploys what it needs."""

from collections.abc import Iterator

import pytest

from tests.support.services import OneCluster, load_document, serving


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    document = load_document("digits.yaml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOJOURN_STORE", str(folder / "store.sock"))
        with serving(folder / "digits.yaml", document) as running:
            yield OneCluster(running, document)
