"""The servers of the comparison and their environments."""

from benchmarks.peers.environments import REQUIREMENTS
from benchmarks.peers.models import HOSTED
from benchmarks.peers.servers import SERVERS


def test_only_servers_with_the_sentence_packages_host_the_sentence_model() -> None:
    assert "minilm" in SERVERS["sojourn"].hosts
    assert "minilm" not in SERVERS["mosec"].hosts
    assert set(SERVERS["mosec"].hosts) == set(HOSTED) - {"minilm"}


def test_every_environment_is_pinned_exactly() -> None:
    for server in SERVERS.values():
        if server.environment:
            lines = (REQUIREMENTS / f"{server.environment}.txt").read_text().splitlines()
            pins = [line for line in lines if not line.startswith("#")]
            assert "torch==2.13.0" in pins
            assert all(pin.count("==") == 1 for pin in pins)
