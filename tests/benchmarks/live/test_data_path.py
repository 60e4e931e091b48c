"""The comparison of HTTP paths: which servers run, and what is skipped."""

import click
import pytest

from benchmarks.live import data_path
from benchmarks.peers.environments import UnavailableError
from benchmarks.peers.results import Results
from deployments.errors import StartError


def test_an_unavailable_server_is_skipped_and_the_reason_reported() -> None:
    results = Results(1.0)
    with data_path._skipping_unavailable("mosec", "mlp", results):
        raise UnavailableError("cannot be installed")
    with data_path._skipping_unavailable("mosec", "minilm", results):
        raise StartError("weights are not installed")
    assert results.to_dict()["unavailable"] == {
        "mosec": "mlp: cannot be installed; minilm: weights are not installed"
    }


def test_sojourn_is_measured_first_and_unknown_peers_are_named() -> None:
    assert data_path.parse_peers(None, quick=True) == ["sojourn", *data_path.QUICK]
    assert data_path.parse_peers("", quick=False) == ["sojourn"]
    assert data_path.parse_peers("mosec,triton", quick=False) == ["sojourn", "mosec", "triton"]
    with pytest.raises(click.BadParameter, match="'torchserve' is not one of"):
        data_path.parse_peers("mosec,torchserve", quick=False)


def test_only_servers_that_can_have_several_replicas_are_measured_with_them() -> None:
    assert data_path.parse_peers(None, quick=True, replicas=2) == ["sojourn", "mosec"]
    with pytest.raises(click.BadParameter, match="'triton' is not one of mosec"):
        data_path.parse_peers("triton", quick=False, replicas=2)


def test_a_reason_is_reported_once_however_many_rounds_met_it() -> None:
    results = Results(1.0)
    for _ in range(3):
        with data_path._skipping_unavailable("mosec", "mlp", results):
            raise UnavailableError("cannot be installed")
    assert results.unavailable == {"mosec": "mlp: cannot be installed"}
