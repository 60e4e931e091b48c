"""Measure what a request costs HAProxy: the part of its way that grows with the load.

A HAProxy of its own, with the settings that it has under Ray Serve, stands before the real HTTP app
with a model that takes no time (`deployments.profiling.front_costs`). It is timed by its CPU time,
so that waits for a core, which it shares with the app and the clients here, do not count.
"""

import asyncio
import socket
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import uvloop

from deployments.haproxy.alone import haproxy
from deployments.haproxy.rays_command import find_haproxy
from deployments.models.base import Model
from deployments.profiling.front_costs import InstantService, serve_instantly
from policy.path import PathCosts
from policy.profile import Profile

_BATCH_SIZE = 8
_WARM_UP_S, _MEASURED_S = 0.3, 1.5


def measure_path(model: Model, profile: Profile) -> PathCosts | None:
    """Measure what requests of one row of a model cost HAProxy; takes about two seconds.

    Parameters
    ----------
    model : Model
        A loaded model. It runs once; its example is the request.
    profile : Profile
        The model's.

    Returns
    -------
    PathCosts or None
        In CPU time, where requests keep HAProxy busy. None if there is no HAProxy to run.

    Raises
    ------
    StartError
        HAProxy does not start, or the requests were not answered.
    """
    if not haproxy_is_there():
        return None
    return uvloop.run(_measure(model, profile))


def haproxy_is_there() -> bool:
    """Return whether there is a HAProxy to run."""
    try:
        return Path(find_haproxy()).exists()
    except ImportError:
        return False


async def _measure(model: Model, profile: Profile) -> PathCosts:
    size = min(_BATCH_SIZE, profile.max_batch_size)
    async with serve_instantly(model, profile, size) as served:
        served.start_batches_of(size)
        with TemporaryDirectory() as folder:
            port = _free_port()
            with haproxy(port, {"replica": served.port}, Path(folder) / "admin.sock") as pid:
                async with served.clients(port):
                    return PathCosts(round(await _cost_ms(served, psutil.Process(pid)), 6))


async def _cost_ms(served: InstantService, process: psutil.Process) -> float:
    """Return HAProxy's CPU time per request."""

    def now() -> tuple[float, int]:
        times = process.cpu_times()
        return times.user + times.system, served.service.answers[200]

    await asyncio.sleep(_WARM_UP_S)
    cpu_before_s, answers_before = now()
    await asyncio.sleep(_MEASURED_S)
    cpu_s, answers = now()
    return 1e3 * (cpu_s - cpu_before_s) / max(1, answers - answers_before)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
