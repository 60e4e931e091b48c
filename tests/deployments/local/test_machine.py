"""Addresses: who reaches them, and where this machine does."""

import pytest

from deployments.access.exposure import is_loopback
from deployments.errors import StartError
from deployments.local import machine
from deployments.local.machine import address_to_ask


@pytest.mark.parametrize(
    ("host", "public", "asked"),
    [
        ("127.0.0.1", False, "127.0.0.1"),
        ("127.0.0.2", False, "127.0.0.2"),
        ("localhost", False, "127.0.0.1"),
        ("0.0.0.0", True, "127.0.0.1"),
        ("::", True, "127.0.0.1"),
        ("192.0.2.7", True, "192.0.2.7"),
        ("example.org", True, "example.org"),
    ],
)
def test_who_reaches_an_address(host: str, public: bool, asked: str) -> None:
    assert (not is_loopback(host), address_to_ask(host)) == (public, asked)


def test_a_gpu_that_there_is_not_is_no_reason_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpu_count", lambda: 0)
    with pytest.raises(StartError, match="num_gpus is 1, and this machine has no GPU: remove"):
        machine.check_machine("127.0.0.1", 1, num_gpus=1.0)
