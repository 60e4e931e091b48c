"""The service without Ray: two replicas behind HAProxy with the configuration that Ray writes.

It starts in seconds and takes little memory, so experiments that only send requests can run where
Ray cannot, and its processes' memory tells of Sojourn alone.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml

from benchmarks.inputs import ROOT
from benchmarks.resilience.service import Document, Service, everything_ended, target_of
from deployments.config.request_environment import request_environment
from deployments.config.routing import serve_environment
from deployments.config.service_config import load_service_config
from deployments.haproxy.open_files import open_files_limit

#: The program of a replica.
REPLICA = "from benchmarks.resilience.bare_replica import serve; serve()"
_START_S = 60.0
#: Renders the configuration in a process whose environment has Ray's settings.
_RENDER = """
import sys
from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig
from ray.serve.config import HTTPOptions

folder, port, *replicas = sys.argv[1:]
options = HTTPOptions(host="127.0.0.1", port=int(port))
config = HAProxyConfig(
    socket_path=f"{folder}/admin.sock",
    server_state_base=folder,
    server_state_file=f"{folder}/server-state",
    http_options=options,
    is_head=True,
)
api = HAProxyApi(config, config_file_path=f"{folder}/haproxy.cfg")
servers = [ServerConfig(f"replica-{one}", "127.0.0.1", int(one)) for one in replicas]
api.set_backend_configs({"http-app": BackendConfig("http-app", "/", servers=servers)})
api._generate_config_file_internal()
"""


@dataclass(frozen=True)
class BareService(Service):
    """A running service without Ray, whose `process` is this one. It deploys nothing."""

    def replicas(self) -> list[psutil.Process]:
        """Return the replicas, by process id."""
        return self.processes(lambda _, command: REPLICA in command)

    def wait_for_replicas(self, count: int, timeout_s: float = _START_S) -> bool:
        """Wait until `count` replicas run and the service answers."""
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s:
            if len(self.replicas()) == count and self.answers():
                return True
            time.sleep(0.2)
        return False


@contextmanager
def serving_without_ray(document: Document) -> Iterator[Service]:
    """Serve a config on bare replicas while the context lasts."""
    (deployment,) = document["applications"][0]["deployments"]
    count = deployment["num_replicas"]
    with ExitStack() as started, tempfile.TemporaryDirectory() as name, everything_ended():
        folder = Path(name)
        config = folder / "config.yaml"
        config.write_text(yaml.safe_dump(document))
        port, *ports = free_ports(1 + count)
        for one in ports:
            command = [sys.executable, "-c", REPLICA, str(config), str(one)]
            started.callback(start([*command, str(folder / "journals")]).wait)
        metrics, statistics = free_ports(2)
        services, open_files = [load_service_config(config)], open_files_limit()
        settings = {
            **serve_environment(open_files=open_files),
            **request_environment(services, open_files=open_files),
            "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics),
            "RAY_SERVE_HAPROXY_STATS_PORT": str(statistics),
        }
        subprocess.run(
            [sys.executable, "-c", _RENDER, name, str(port), *map(str, ports)],
            cwd=ROOT,
            env={**os.environ, **settings},
            check=True,
            capture_output=True,
        )
        supervisor = Path(sys.executable).with_name("sojourn-haproxy")
        command = [str(supervisor), "-db", "-f", str(folder / "haproxy.cfg"), "-dR"]
        started.callback(start(command, settings).wait)
        service = BareService(target_of(document, port), "", psutil.Process(), deepcopy(document))
        if not service.wait_for_replicas(count):
            raise SystemExit("the replicas did not start")
        service.wait_for_tables()
        yield service


def start(
    command: list[str], environment: dict[str, str] | None = None
) -> "subprocess.Popen[bytes]":
    """Start a process of the service; `everything_ended` ends it."""
    environment = {**os.environ, **(environment or {})}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)


def free_ports(count: int) -> list[int]:
    """Return ports on which nobody listens now."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports
