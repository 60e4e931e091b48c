"""A standby of a real service: promoted without a new process, and in place of one that dies."""

from pathlib import Path

import httpx
import pytest

from benchmarks.live.standbys import LOW_PER_S, Clients, Measured, standby_document
from tests.support.services import serving

pytestmark = pytest.mark.integration


def test_a_standby_serves_within_seconds_of_an_order_and_of_a_death(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "standbys.yaml", standby_document(1)) as service,
        Clients(service.url, LOW_PER_S).running() as clients,
    ):
        measured = Measured(service.url, service.summary["dashboard"], clients)
        first = measured.wait_for_standby()
        processes = measured.processes()
        newest = httpx.get(f"{service.url}/sojourn/autoscaler").json()["newest"]
        assert newest["standbys"] == 1
        assert newest["reason"].startswith("1 serves, 1 stands by")
        assert not clients.failed()

        # A new process takes seconds longer.
        assert measured.death(first, recovered_s=0.0)["served_after_s"] < 5
        assert clients.answering() - {first} < processes

        # Its replacement stands by in turn.
        second = measured.wait_for_standby()
        assert second in processes
        processes = measured.processes()
        promoted = measured.promotion(second)
        assert promoted["served_after_s"] < 5
        assert promoted["failed"] == 0
        assert measured.processes() == processes
