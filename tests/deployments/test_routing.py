"""The environment that makes Serve's HAProxy the RAND policy."""

import os
import subprocess
import sys

from deployments.routing import serve_environment


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
