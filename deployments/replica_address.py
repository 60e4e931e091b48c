"""Where a replica's own servers listen: Ray has one of them listen on all interfaces.

Calls between deployments go to a gRPC server in each replica (`ray/serve/_private/replica.py`). It
takes pickled arguments, asks for no token, and listens on all interfaces. On a node whose address
is 127.0.0.1, as in a local run, only this machine calls it.
"""

import ray
from ray.serve._private import replica

from deployments.local.machine import LOOPBACK

_EVERYWHERE = "[::]:0"


def confine_to_node() -> None:
    """Have the gRPC server of this process listen on this machine only, if its node does.

    To be called before Ray starts that server.
    """
    if ray.util.get_node_ip_address() != LOOPBACK:
        return
    add_port = replica.add_port_to_grpc_server

    def add_local_port(server: object, address: str) -> int:
        return int(add_port(server, f"{LOOPBACK}:0" if address == _EVERYWHERE else address))

    replica.add_port_to_grpc_server = add_local_port
