import asyncio
from types import SimpleNamespace

import pytest
from ray.serve._private import replica

from deployments.serving import ray_replica


@pytest.mark.parametrize(
    ("node", "asked", "bound"),
    [
        ("127.0.0.1", "[::]:0", "127.0.0.1:0"),
        ("127.0.0.1", "[::]:9000", "[::]:9000"),
        ("192.0.2.7", "[::]:0", "[::]:0"),
    ],
)
def test_the_grpc_server_listens_where_the_node_does(monkeypatch, node, asked, bound):
    addresses: list[str] = []

    def add_port(server, address):
        addresses.append(address)
        return 1

    monkeypatch.setattr(replica, "add_port_to_grpc_server", add_port)
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: node)
    ray_replica.confine_to_node()
    assert replica.add_port_to_grpc_server(None, asked) == 1
    assert addresses == [bound]


def test_draining_is_heard_of_before_ray_waits(monkeypatch):
    order: list[str] = []

    async def stop(self):
        order.append("Ray stops the replica")

    monkeypatch.setattr(replica.Replica, "_perform_graceful_shutdown", stop)
    ray_replica.call_when_draining(lambda: order.append("draining"))

    async def shut_down():
        fake = SimpleNamespace(_graceful_shutdown_task=None)
        fake._event_loop = asyncio.get_running_loop()
        fake._perform_graceful_shutdown = lambda: replica.Replica._perform_graceful_shutdown(fake)
        await replica.Replica.perform_graceful_shutdown(fake)

    asyncio.run(shut_down())
    assert order == ["draining", "Ray stops the replica"]


def test_a_replica_is_left_out_while_a_condition_holds(monkeypatch):
    fake = SimpleNamespace(_shutting_down=False, _healthy=True)
    check = replica.Replica._dataplane_health_check
    monkeypatch.setattr(replica.Replica, "_dataplane_health_check", check)
    conditions = [False, True]
    ray_replica.leave_out_while(lambda: conditions.pop(0))

    def looked():
        return asyncio.run(replica.Replica._dataplane_health_check(fake))

    assert looked() == (True, "success")
    assert looked() == (False, "LEFT OUT")
    fake._shutting_down = True
    assert looked() == (False, "DRAINING")
