import re
from contextlib import closing

import pytest

from deployments.access.web_pages import is_loopback
from deployments.errors import StartError
from deployments.local import machine
from deployments.local.check import Checked
from deployments.local.machine import ReservedPorts, address_to_ask, check_machine, url_of
from sojourn.cli import main
from tests.support.ports import free_port
from tests.support.readme import ROOT


@pytest.mark.parametrize(
    ("host", "public", "asked"),
    [
        ("127.0.0.2", False, "127.0.0.2"),
        ("localhost", False, "127.0.0.1"),
        ("0.0.0.0", True, "127.0.0.1"),
        ("::", True, "127.0.0.1"),
        ("192.0.2.7", True, "192.0.2.7"),
    ],
)
def test_who_reaches_an_address(host, public, asked):
    assert (not is_loopback(host), address_to_ask(host)) == (public, asked)


def test_an_address_of_ipv6_is_free_and_in_brackets():
    """It was always in use."""
    port = free_port()
    assert url_of("::1", port) == f"http://[::1]:{port}"
    assert url_of("", port) == f"http://127.0.0.1:{port}"
    check_machine("::1", port)


@pytest.fixture
def _models_are_fine(monkeypatch):
    monkeypatch.setattr("sojourn.served.check_service", lambda service, load: Checked())


@pytest.mark.usefixtures("_models_are_fine")
@pytest.mark.parametrize(
    ("config", "option", "least", "message"),
    [
        ("digits", "num_gpus: 1", 1, r"num_gpus: .* take 1, and this machine has 0: lower num_gp"),
        ("digits", "num_cpus: 2", 2, r"num_cpus: .* take 4, and this machine has 2: lower num_cp"),
        ("digits-pipeline", "num_cpus: 3", 1, r"num_cpus: .* take 3, and this machine has 2: low"),
    ],
)
def test_more_than_the_machine_has_is_refused_before_anything_starts(
    tmp_path, monkeypatch, capsys, config, option, least, message
):
    """The check called it fine, and a start waited for two minutes."""
    monkeypatch.setattr(machine, "gpu_count", lambda: 0)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    path = tmp_path / "large.yaml"
    text = (ROOT / "configs" / f"{config}.yaml").read_text()
    text = text.replace("min_replicas: 1", f"min_replicas: {least}")
    path.write_text(re.sub(r"num_cpus: \S+", option, text))
    for arguments in (["--check"], []):
        assert main(["serve", *arguments, str(path)]) == 2
        assert re.search(f"sojourn: {message}", capsys.readouterr().err)
    elsewhere = f"http://127.0.0.1:{free_port()}"
    assert main(["deploy", "--address", elsewhere, str(path)]) == 2
    assert f"sojourn: {elsewhere}/api/serve/applications/ does not" in capsys.readouterr().err


def test_runs_that_start_at_the_same_time_have_ports_of_their_own():
    port = free_port()
    with closing(ReservedPorts()) as first, closing(ReservedPorts()) as second:
        assert first.free(port) == port
        assert second.free(port) != port
        first.take("127.0.0.2", port)
        with pytest.raises(StartError, match=f"takes port {port} of 127.0.0.2"):
            second.take("127.0.0.2", port)
    with closing(ReservedPorts()) as third:
        assert third.free(port) == port
