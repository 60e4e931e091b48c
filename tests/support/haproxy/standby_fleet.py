"""Replicas with roles behind a real HAProxy and its supervisor, and Serve's own proxy; no Ray."""

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from autoscaler.standbys import RolesPublisher, roles_key
from deployments.control.standby_role import StandbyRole
from deployments.haproxy.stats import HaproxyStats
from tests.support.autoscaling.stores import Store
from tests.support.haproxy.node import Node, new_node
from tests.support.haproxy.servers import Answer, Server

_HEALTH_PATH = "/-/healthz"


class Replica(Server):
    """A replica that answers with its name, and follows its role as the real one does."""

    def __init__(self, name: str, store: Store, admin_socket: Path) -> None:
        super().__init__()
        self.name = name
        key = roles_key("app", "Model")
        haproxy = HaproxyStats(f"replica-{self.port}", admin_socket)
        self.role = StandbyRole(name, lambda: store.kept.get(key), haproxy.nobody_serves)
        asyncio.run(self.role.configure(1))
        self._following = threading.Thread(target=lambda: asyncio.run(self._follow()))
        self._following.start()

    async def _follow(self) -> None:
        while not self.is_closed:
            await asyncio.sleep(self.role.period_s)
            await self.role.follow()

    def answer(self, path: str, fields: Mapping[str, str]) -> Answer:
        if path == _HEALTH_PATH and self.role.standby:
            return 503, b"STANDBY", {}
        return 200, self.name.encode(), {}

    def close(self) -> None:
        super().close()
        self._following.join()


class ServeProxy(Server):
    """Serve's own proxy: it sends a request to any replica that is up."""

    def __init__(self, replicas: list[Replica]) -> None:
        self._replicas = replicas
        super().__init__()

    def answer(self, path: str, fields: Mapping[str, str]) -> Answer:
        for replica in self._replicas:
            if path != _HEALTH_PATH and not replica.is_closed:
                return replica.answer(path, fields)
        return (200, b"success", {}) if path == _HEALTH_PATH else (503, b"none", {})


class StandbyFleet:
    """Two replicas, a publisher of their roles, and HAProxy in front of them."""

    def __init__(self, node: Node) -> None:
        store = Store()
        self._publisher = RolesPublisher("app", "Model", store)
        self._publisher.is_loaded()
        self.publish(1, 1)
        self.replicas = [Replica(name, store, node.folder / "admin.sock") for name in ("a", "b")]
        node.replicas, node.proxy = [*self.replicas], ServeProxy(self.replicas)
        node.start()
        self._node = node

    def publish(self, replicas: int, standbys: int) -> None:
        """Publish that the first replicas serve."""
        self._publisher.publish(time.time(), ["a", "b"], replicas, standbys)

    def answering(self, requests: int = 20) -> set[tuple[int, bytes]]:
        """Return who answers, and with what status."""
        return {self._node.get() for _ in range(requests)}


@contextmanager
def standby_fleet(folder: Path) -> Iterator[StandbyFleet]:
    """Run two replicas, one of which stands by, behind HAProxy."""
    with new_node(folder) as node:
        yield StandbyFleet(node)
