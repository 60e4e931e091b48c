"""How many requests HAProxy sends to the replicas at a time, and what both tell each other of it.

A refusal costs a replica's event loop nearly a quarter of what an answer costs. So an overload of
the loop itself cannot be refused by the replica: at twice what it can answer, refusals would take
more than a quarter of its time, and requests would wait unread. HAProxy refuses at little cost.

Each replica says in its answers how many requests it can hold and still answer in time
(`policy.batcher.limits.Limits.concurrency`). While a replica has so many, HAProxy sends
further POSTs to one that has fewer, and refuses them at once if there is none. (Each replica is
looked at alone: of a sum for all of them, one that hangs would soon have all.) Its admin socket has
the number of those that it refused (`deployments.haproxy.denied_requests`), so the autoscaler sees
what clients offered.

Each node has a HAProxy, and each may send to all replicas. So it names itself to them, and they
divide their limits (`deployments.haproxy.limit_shares`).
"""

import socket
import zlib
from collections.abc import Sequence
from pathlib import Path

#: The headers of answers with a replica's limit, which HAProxy removes, and of requests with
#: HAProxy's name, which it sets whatever clients send.
LIMIT_HEADER = b"x-sojourn-concurrency-limit"
BALANCER_HEADER = b"x-sojourn-balancer"
#: Longer names are no HAProxy's.
_LONGEST_NAME = 16
#: More than any server has at a time.
UNLIMITED = 1_000_000
#: What a request is found to be: one that is limited, with a server that has room, and with one
#: that is full.
_MARKS = "limited", "room", "full"
#: Requests with this header may matter more than others, so the replicas decide about them.
_PRIORITY = "x-request-priority"
#: A larger body does not fit into HAProxy's buffer. An answer before all of it has come could be
#: lost, as HAProxy would close the connection, so the replicas decide about those as well.
LARGEST_BODY_BYTES = 32 << 10
#: The body of a refusal, the same as a replica's.
FULL = '{"error":"this replica is full; try again later"}'


def balancer_name(admin_socket: Path) -> str:
    """Return the name of the HAProxy of this node, given where Ray asks it.

    It stays the same when HAProxy is started again, so no replica takes the new process for one
    more. Ray puts the socket into a folder that has the node's id.
    """
    return f"{zlib.crc32(f'{socket.gethostname()}:{admin_socket}'.encode()):08x}"


def rules(backend: str, servers: Sequence[str], balancer: str) -> tuple[str, ...]:
    """Return HAProxy's lines for a backend.

    Parameters
    ----------
    backend : str
        Its name. Each has variables of its own in HAProxy's process.
    servers : sequence of str
        The names of its servers that are no backups.
    balancer : str
        HAProxy's `balancer_name`.
    """
    name = f"{zlib.crc32(backend.encode()):08x}"
    limit = f"proc.sojourn_limit_{name}"
    limited, room, full = (f"{{ var(txn.sojourn_{one}) -m found }}" for one in _MARKS)
    looks = []
    for one in servers:
        is_up = f"{{ srv_is_up({backend}/{one}) }}"
        spare = f"srv_conn({backend}/{one}),sub({limit})"
        looks += [
            f"http-request set-var(txn.sojourn_room) str({one}) "
            f"if {limited} !{room} {is_up} {{ {spare} lt 0 }}",
            f"http-request set-var(txn.sojourn_full) int(1) "
            f"if {limited} !{full} {is_up} {{ {spare} ge 0 }}",
        ]
    return (
        f"http-request set-header {BALANCER_HEADER.decode()} {balancer}",
        # The servers are looked at one by one only if they have half of what they may have, and not
        # before a replica has said its limit: until then this is not set.
        f"http-request set-var(txn.sojourn_half) nbsrv,mul({limit}),div(2) if METH_POST",
        f"http-request set-var(txn.sojourn_limited) int(1) if METH_POST {{ nbsrv gt 0 }} "
        f"{{ be_conn,sub(txn.sojourn_half) ge 0 }} !{{ req.hdr({_PRIORITY}) -m found }} "
        f"{{ req.hdr_val(content-length) le {LARGEST_BODY_BYTES} }}",
        f"http-request wait-for-body time 30s if {limited}",
        *looks,
        f"http-request deny deny_status 503 content-type application/json hdr Retry-After 1 "
        f"string '{FULL}' if {limited} !{room}",
        f"http-response set-var({limit}) res.hdr({LIMIT_HEADER.decode()}),add(0) "
        f"if {{ res.hdr({LIMIT_HEADER.decode()}) -m found }}",
        f"http-response del-header {LIMIT_HEADER.decode()}",
        f"use-server %[var(txn.sojourn_room)] if {room} {full}",
    )


def limit_header(concurrency: int | None) -> tuple[bytes, bytes]:
    """Return the header of answers that tells HAProxy a replica's limit; None: there is none."""
    return LIMIT_HEADER, b"%d" % (UNLIMITED if concurrency is None else concurrency)


def named_balancer(value: bytes | None) -> bytes | None:
    """Return the name in a `BALANCER_HEADER`; None if there is none."""
    return value if value and len(value) <= _LONGEST_NAME else None
