"""Replicas without Ray, behind Ray's HAProxy with our settings."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import httpx
import numpy as np

from benchmarks.inputs import ROOT
from benchmarks.live.cpu_quota import cpu_quota
from deployments.haproxy.alone import haproxy
from tests.support.ports import free_port
from tests.support.waiting import wait_for


@dataclass(frozen=True)
class BareReplicas:
    """Running replicas.

    Attributes
    ----------
    port : int
        That of HAProxy.
    admin : Path
        Its admin socket.
    balancer : int
        Its process.
    replicas : dict of int to int
        The processes of the replicas by their ports.
    """

    port: int
    admin: Path
    balancer: int
    replicas: dict[int, int]

    @property
    def policy_urls(self) -> list[str]:
        """Where each replica tells of itself."""
        return [_policy_url(port) for port in self.replicas]


def _policy_url(port: int) -> str:
    return f"http://127.0.0.1:{port}/sojourn/policy"


def _is_ready(port: int) -> bool:
    return bool(httpx.get(_policy_url(port)).json()["table"] != "solving")


@contextmanager
def bare_replicas(
    count: int,
    name: str,
    import_path: str,
    *options: str,
    cores: float = np.inf,
    period_ms: int = 100,
) -> Iterator[BareReplicas]:
    """Run replicas of a model, once their first policy is solved.

    Parameters
    ----------
    count : int
    name, import_path : str
        The model.
    *options : str
        Further ones of `tests.support.front_server`.
    cores : float
        Of each replica, by a quota; infinite without one.
    period_ms : int
        Of the quota.

    Raises
    ------
    ClickException
        A replica did not start, or there may be no quota.
    """
    names = {f"r{number}-front": free_port() for number in range(count)}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port, admin = free_port(), folder / "admin.sock"
        replicas = {}
        for server, server_port in names.items():
            quota = None
            if np.isfinite(cores):
                quota = stack.enter_context(cpu_quota(cores, period_ms))
            command = [sys.executable, "-m", "tests.support.front_server"]
            command += [str(server_port), str(admin), "--server", server, "--name", name]
            command += ["--import-path", import_path, *options]
            replica = stack.enter_context(subprocess.Popen(command, cwd=ROOT))
            stack.callback(replica.kill)
            if not wait_for(partial(_is_ready, server_port), 120):
                raise click.ClickException("a replica did not start")
            if quota is not None:
                quota.write_text(str(replica.pid))
            replicas[server_port] = replica.pid
        balancer = stack.enter_context(haproxy(port, names, admin))
        yield BareReplicas(port, admin, balancer, replicas)
