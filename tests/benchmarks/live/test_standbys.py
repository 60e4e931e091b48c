"""A standby of a real service: promoted without a new process, and in place of one that dies."""

import time
from pathlib import Path

import httpx
import pytest

from benchmarks.live.standbys import LOW_PER_S, Clients, Measured, standby_document
from tests.support.services import serving

pytestmark = pytest.mark.integration


def test_a_standby_serves_in_place_of_a_replica_that_dies_and_beside_one_that_is_full(
    tmp_path: Path,
) -> None:
    with (
        serving(tmp_path / "standbys.yaml", standby_document(1)) as service,
        Clients(service.url, LOW_PER_S).running() as clients,
    ):
        measured = Measured(service.url, service.summary["dashboard"], clients)
        first = measured.wait_for_standby()
        processes = measured.processes()

        assert clients.failed() == []
        decision = httpx.get(f"{service.url}/sojourn/autoscaler").json()["newest"]
        assert decision["reason"].startswith("1 serves, 1 stands by"), decision

        assert first in processes
        measured.death(first, recovered_s=0.0)
        second = (processes - {first}).pop()
        assert clients.answering() - {first} == {second}

        # Its replacement stands by in turn.
        assert measured.wait_for_standby() == second
        processes = measured.processes()
        promoted_s = time.time()
        measured.promotion(second)
        assert clients.failed(promoted_s) == []
        assert clients.answering() == measured.processes() == processes
