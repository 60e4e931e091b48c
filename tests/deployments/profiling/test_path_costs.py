"""What requests cost a real HAProxy."""

from pathlib import Path

import numpy as np
import pytest

from deployments.errors import StartError
from deployments.haproxy.settings import HAPROXY
from deployments.profiling import path_costs
from policy.profile import Profile
from tests.support.doubles_service import Doubles

PROFILE = Profile("m", "d", np.full(4, 1.0))


def test_without_haproxy_nothing_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HAPROXY, str(tmp_path / "none"))
    assert path_costs.measure_path(Doubles(), PROFILE) is None


def test_a_haproxy_that_does_not_start_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "haproxy"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv(HAPROXY, str(broken))
    with pytest.raises(StartError, match="HAProxy does not listen"):
        path_costs.measure_path(Doubles(), PROFILE)


@pytest.mark.slow
def test_a_real_haproxy_is_measured() -> None:
    """Any machine passes a request in 1 µs to 5 ms of CPU time."""
    path = path_costs.measure_path(Doubles(), PROFILE)
    assert path is not None
    assert 0.001 < path.balancer_ms < 5
    assert path.replicas == 1
