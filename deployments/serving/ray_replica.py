"""Changes of Ray's replica around ours, where Ray offers no hook.

All functions change Ray's module in this process, which hosts one replica. They are to be called in
the replica's constructor.
"""

from collections.abc import Callable
from typing import Any

import ray
from ray.serve._private import replica

from deployments.local.machine import LOOPBACK

_EVERYWHERE = "[::]:0"


def confine_to_node() -> None:
    """Make the gRPC server of this replica listen on this machine only, if its node does.

    Calls between deployments go to that server. It takes pickled arguments, asks for no token, and
    listens on all interfaces. On a node whose address is 127.0.0.1, as in a local run, only this
    machine calls it.
    """
    if ray.util.get_node_ip_address() != LOOPBACK:
        return
    add_port = replica.add_port_to_grpc_server

    def add_local_port(server: Any, address: str) -> int:
        return int(add_port(server, f"{LOOPBACK}:0" if address == _EVERYWHERE else address))

    replica.add_port_to_grpc_server = add_local_port


def call_when_draining(callback: Callable[[], None]) -> None:
    """Call `callback` when Ray begins to stop this replica.

    The replica then stays reachable for some seconds, until every HAProxy knows; it hears of its
    end, in ``__del__``, only after that.
    """
    stop = replica.Replica._perform_graceful_shutdown

    async def drain_and_stop(self: Any) -> None:
        callback()
        await stop(self)

    replica.Replica._perform_graceful_shutdown = drain_and_stop


def leave_out_while(condition: Callable[[], bool]) -> None:
    """Make load balancers leave this replica out while `condition` returns true.

    Their health checks then fail. Serve's controller asks another way, and keeps the replica.
    """
    check = replica.Replica._dataplane_health_check

    async def check_condition(self: Any) -> tuple[bool, str]:
        healthy, message = await check(self)
        return (False, "LEFT OUT") if healthy and condition() else (healthy, message)

    replica.Replica._dataplane_health_check = check_condition
