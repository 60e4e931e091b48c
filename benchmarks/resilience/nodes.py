"""A service on two nodes, of which one is drained, killed, or cut off.

Each node is a machine of its own (`benchmarks.resilience.nodes_machines`) with a raylet, a HAProxy,
a replica, and a manager of the model store; either could serve the load alone. One half of the
clients asks the HAProxy of the first node. The other half begins at the second node, which goes,
behind a load balancer that asks this node's HAProxy for its health as Kubernetes does.
"""

import http.client
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks.local_service import get_json
from benchmarks.resilience.faults import runs
from benchmarks.resilience.load import Bystanders, Load, Target
from benchmarks.resilience.nodes_machines import Machine, machines
from benchmarks.resilience.run import Run
from benchmarks.resilience.service import (
    Document,
    Service,
    emulated_document,
    everything_ended,
    target_of,
)
from deployments.local.environment import ray_headers

#: Of each half of the clients.
LOAD = Load(rate_per_s=40, idle_clients=30)
#: The row of those behind the load balancer.
BALANCED = "behind a balancer"
_PORT, _DASHBOARD_PORT, _GCS_PORT = 8000, 8265, 6379
_CPUS = 1
_OBJECT_STORE_BYTES = 128 << 20
#: The readiness probe of k8s/base/rayservice.yaml.
_PROBE_EVERY_S, _PROBE_TIMEOUT_S, _PROBE_FAILURES = 2.0, 2.0, 2
#: What preStop gives a node, there.
_DRAIN_S = 90
#: How long Ray may take to listen to the dashboard's users.
_DEPLOYED_WITHIN_S = 60.0
#: How long Ray may take to find that a node is gone, and to start a replica elsewhere.
_REPLACED_WITHIN_S = 90.0
#: How long the load goes on afterwards.
_AFTER_S = 8.0


@dataclass(frozen=True)
class TwoNodes(Service):
    """A service on two nodes.

    Attributes
    ----------
    staying : Machine
        The head.
    going : Machine
        The node that is drained or dies.
    """

    staying: Machine
    going: Machine

    def bystanders(self, load: Load) -> dict[str, Bystanders]:
        """Return the clients of the node that stays, and those behind a load balancer."""
        going = self.target_at(self.going)
        return {"": Bystanders(self.target, load), BALANCED: Balanced(going, self.target, load)}

    def target_at(self, machine: Machine) -> Target:
        """Return the service as a machine's own HAProxy offers it."""
        target = self.target
        return Target(machine.address, target.port, target.model, target.sla_s, target.percentile)

    def replicas_at(self, machine: Machine) -> int:
        """Return how many replicas run on a machine, by Serve's own status."""
        with suppress(OSError, ValueError, KeyError):
            (application,) = self.details()["applications"].values()
            (deployment,) = application["deployments"].values()
            return sum(
                one["state"] == "RUNNING" and one["node_ip"] == machine.address
                for one in deployment["replicas"]
            )
        return 0

    def details(self) -> dict[str, Any]:
        """Return what Serve says of the cluster."""
        return get_json(f"{self.dashboard}/api/serve/applications/", ray_headers())


class Balanced(Bystanders):
    """Clients behind a load balancer: they go to another node when theirs says it is not ready.

    Requests that are under way stay where they are.

    Parameters
    ----------
    first : Target
    other : Target
    load : Load
    """

    def __init__(self, first: Target, other: Target, load: Load) -> None:
        super().__init__(first, load)
        self._other = other
        self._ended = threading.Event()
        self._probe = threading.Thread(target=self.watch, daemon=True)

    def start(self) -> None:
        """Begin to send, and to probe."""
        super().start()
        self._probe.start()

    def end(self) -> None:
        """Send no more, and wait for the last answers."""
        self._ended.set()
        super().end()
        self._probe.join()

    def watch(self) -> None:
        """Probe the first node until its clients have gone to the other one, or `end`."""
        failures = 0
        while not self._ended.wait(_PROBE_EVERY_S):
            failures = 0 if healthy(self.target) else failures + 1
            if failures == _PROBE_FAILURES:
                self.target = self._other
                return


def healthy(target: Target) -> bool:
    """Return whether a HAProxy says that its node can take requests."""
    connection = http.client.HTTPConnection(target.host, target.port, timeout=_PROBE_TIMEOUT_S)
    try:
        connection.request("GET", "/-/healthz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def document() -> Document:
    """Return the config of a service with a model store on each node."""
    content = emulated_document()
    content["http_options"] = {"host": "0.0.0.0", "port": _PORT}
    return content


@contextmanager
def serving(document: Document) -> Iterator[TwoNodes]:
    """Serve a config on two nodes while the context lasts."""
    content = deepcopy(document)
    with (
        tempfile.TemporaryDirectory() as folder,
        everything_ended(),
        machines("staying", "going") as (staying, going),
    ):
        config = Path(folder, "config.yaml")
        content["applications"][0]["args"]["store"] = {
            "remote": f"file://{folder}",
            "expert": {"disk": "/dev/shm/store"},
        }
        config.write_text(yaml.safe_dump(content))
        environment = staying.run(f"sojourn serve --environment {config} 2>/dev/null")
        start = (
            f"{environment}\nray start --num-cpus={_CPUS} "
            f"--object-store-memory={_OBJECT_STORE_BYTES}"
        )
        head, port = staying.address, f"/dev/tcp/{staying.address}/{_GCS_PORT}"
        with ThreadPoolExecutor() as pool:
            joined = pool.submit(
                going.run,
                f"until (: >{port}) 2>/dev/null; do sleep 0.2; done\n"
                f"{start} --node-ip-address={going.address} --address={head}:{_GCS_PORT}",
            )
            staying.run(
                f"{start} --node-ip-address={head} --head --port={_GCS_PORT} "
                "--dashboard-host=0.0.0.0"
            )
            joined.result()
        dashboard = f"http://{staying.address}:{_DASHBOARD_PORT}"
        target = target_of(content, staying.address, _PORT)
        service = TwoNodes(target, dashboard, psutil.Process(), content, staying, going)
        if not wait(lambda: deployed(service), _DEPLOYED_WITHIN_S):
            raise SystemExit("the service was not deployed")
        service.wait_until_ready()
        for machine in (staying, going):
            if not wait(partial(healthy, service.target_at(machine)), 30):
                raise SystemExit(f"{machine.name}: no replica, or HAProxy does not know of it")
        yield service


def deployed(service: Service) -> bool:
    """Deploy the service's config; return whether Ray took it."""
    with suppress(OSError):
        service.deploy(service.document)
        return True
    return False


def killed(run: Run) -> None:
    """Kill all processes of one of two nodes at once."""
    service = two_nodes(run)
    run.begin()
    service.going.kill()
    note_replacement(run, service)
    time.sleep(_AFTER_S)


def vanished(run: Run) -> None:
    """Cut one of two nodes off the network, with all its connections open."""
    service = two_nodes(run)
    run.begin()
    service.going.unplug()
    note_replacement(run, service)
    time.sleep(_AFTER_S)


def drained(run: Run) -> None:
    """Drain one of two nodes as preStop does for Kubernetes, and end it when its raylet ended."""
    service = two_nodes(run)
    run.begin()
    service.going.run(
        "RAY_AUTH_MODE=token ray drain-node --reason DRAIN_NODE_REASON_PREEMPTION "
        f"--reason-message 'the pod is deleted' --deadline-remaining-seconds {_DRAIN_S} "
        f"--address {service.staying.address}:{_GCS_PORT} --node-id {node_id(service)}"
    )
    note_replacement(run, service)
    left_s = max(0.0, _DRAIN_S - (time.monotonic() - run.fault_s))
    ended = wait(lambda: not any(one.name() == "raylet" for one in alive(service.going)), left_s)
    run.notes.append(
        f"the raylet ended within {time.monotonic() - run.fault_s:.0f} s"
        if ended
        else f"the raylet did not end within {_DRAIN_S} s"
    )
    service.going.kill()
    time.sleep(_AFTER_S)


def two_nodes(run: Run) -> TwoNodes:
    """Return the service of an experiment, with a replica and a manager at each node."""
    service = run.service
    assert isinstance(service, TwoNodes)
    for machine in (service.staying, service.going):
        managers = sum("ray::StoreActor" in command_of(one) for one in machine.processes())
        count = service.replicas_at(machine)
        run.notes.append(f"{machine.name}: {count} replicas, {managers} managers of the store")
    if not service.replicas_at(service.going):
        raise SystemExit("no replica runs on the node that goes")
    return service


def note_replacement(run: Run, service: TwoNodes) -> None:
    """Wait until the node that stays has both replicas, and note how long that took."""
    found = wait(lambda: service.replicas_at(service.staying) == 2, _REPLACED_WITHIN_S)
    took_s = time.monotonic() - run.fault_s
    run.notes.append(
        f"two replicas on the other node {'' if found else 'not '}within {took_s:.0f} s"
    )


def node_id(service: TwoNodes) -> str:
    """Return Ray's name of the node that goes."""
    proxies = service.details()["proxies"]
    (found,) = (name for name, one in proxies.items() if one["node_ip"] == service.going.address)
    return str(found)


def alive(machine: Machine) -> list[psutil.Process]:
    """Return the processes of a machine that have not ended."""
    return [one for one in machine.processes() if runs(one)]


def command_of(process: psutil.Process) -> str:
    """Return the command line of a process; nothing of one that has ended."""
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def wait(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Wait until a condition holds; return whether it does."""
    until_s = time.monotonic() + timeout_s
    while time.monotonic() < until_s:
        if condition():
            return True
        time.sleep(0.2)
    return False
