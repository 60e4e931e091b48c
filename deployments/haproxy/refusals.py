"""Requests that HAProxy refuses, and refusals of replicas that it does not try again.

A refusal costs a replica's event loop nearly a quarter of an answer. So an overload of the loop
itself cannot be refused by the replica: at twice what it can answer, refusals would take more than
a quarter of its time, and requests would wait unread. HAProxy refuses at little cost.

Each replica names in its answers the number of requests that it can hold and still answer in time
(`policy.batcher.limits.Limits.concurrency`). While a replica has so many, HAProxy sends further
POSTs to one that has fewer, and refuses them at once if there is none. (Each replica is judged
alone: of a sum for all of them, one that hangs would soon have all.) Its admin socket has the
number of the refused ones (`deployments.haproxy.stats`), so the autoscaler sees what
clients offered. Each node has a HAProxy, and each may send to all replicas, so each gets a part of
the limit (`HaproxyPeers`).

HAProxy sends a request that is answered 503 to another replica, or again to the same one if there
is no other. That has no more room a millisecond later, and refusing six times leaves it no time for
answers. So HAProxy marks the requests of an only replica, which refuses them by a status of its
own. HAProxy makes it a 503 for the client. The mark changes nothing else, so a client that sends it
to a replica learns nothing and moves nothing. (`disable-l7-retry` would also keep HAProxy from
trying again what a dying replica held, and its clients would get no answer.)

The ``Retry-After`` of every 503 is a random one: from the earliest return that the replicas name in
their answers (`policy.returns`) to just before its double, or from 1 to 5 s.
"""

import zlib
from collections import Counter
from collections.abc import Sequence

#: The header of answers with a replica's limit, which HAProxy removes.
LIMIT_HEADER = b"x-sojourn-concurrency-limit"
#: The header of answers with the largest body, which HAProxy removes as well.
MAX_BODY_HEADER = b"x-sojourn-max-body-bytes"
#: The header of answers with the earliest return of refused clients, which HAProxy removes as well.
RETURN_HEADER = b"x-sojourn-earliest-return"
#: The header of answers with which HAProxy closes the client's connection; HAProxy removes it.
CLOSE_HEADER = b"x-sojourn-close"
#: The header of refusals that says why, for programs.
REASON_HEADER = b"x-sojourn-reason"
#: More than any server has at a time.
UNLIMITED = 1_000_000
#: The header of requests to an only replica; HAProxy removes it from what clients send.
ONLY_REPLICA_HEADER = b"x-sojourn-only-replica"
#: The status that is not tried again.
FINAL_STATUS = 529
#: Marks of a request: it is limited, a server has room for it, a server is full.
_MARKS = "limited", "room", "full"
#: Requests with this header may matter more than others, so replicas get twice as many of them.
_PRIORITY = "x-request-priority"
#: A larger body does not fit into HAProxy's buffer. An answer before all of it has come could be
#: lost, as HAProxy would close the connection, so the replicas decide about those as well.
LARGEST_BODY_BYTES = 32 << 10
#: The body of a refusal, the same as a replica's.
FULL = '{"error":"this replica is full; try again later"}'
_TOO_LARGE = '{"error":"the body is too large (limits.max_body_bytes)"}'
#: Many times the longest wait of refused clients: what is left of a random number is as random.
_MANY_S = 1 << 20
#: How long a body may take to arrive, or as much of it as HAProxy can hold.
BODY_TIMEOUT_S = 30


def rules(backend: str, servers: Sequence[str]) -> tuple[str, ...]:
    """Return HAProxy's lines for a backend, given the names of its servers that are no backups.

    Each backend has variables of its own in HAProxy's process.
    """
    name = f"{zlib.crc32(backend.encode()):08x}"
    limit, max_body, returns = (f"proc.sojourn_{one}_{name}" for one in ("limit", "body", "return"))
    random = f"rand({_MANY_S}),mod({returns}),add({returns})"
    own_limit = "txn.sojourn_own_limit"
    closes = f"{{ res.hdr({CLOSE_HEADER.decode()}) -m found }}"
    limited, room, full = (f"{{ var(txn.sojourn_{one}) -m found }}" for one in _MARKS)
    looks = []
    for one in servers:
        is_up = f"{{ srv_is_up({backend}/{one}) }}"
        spare = f"srv_conn({backend}/{one}),sub({own_limit})"
        looks += [
            f"http-request set-var(txn.sojourn_room) str({one}) "
            f"if {limited} !{room} {is_up} {{ {spare} lt 0 }}",
            f"http-request set-var(txn.sojourn_full) int(1) "
            f"if {limited} !{full} {is_up} {{ {spare} ge 0 }}",
        ]
    only = ONLY_REPLICA_HEADER.decode()
    told = []
    headers = {limit: LIMIT_HEADER, max_body: MAX_BODY_HEADER, returns: RETURN_HEADER}
    for variable, header in ((variable, header.decode()) for variable, header in headers.items()):
        value = f"res.hdr({header})"
        told += [
            f"http-response set-var({variable}) {value},add(0) if {{ {value} -m found }}",
            f"http-response del-header {header}",
        ]
    return (
        # This comes before ``100 Continue``, which HAProxy sends when it waits for a body.
        f"http-request deny deny_status 413 content-type application/json string '{_TOO_LARGE}' "
        f"if {{ req.hdr_val(content-length),sub({max_body}) gt 0 }}",
        # Only what has come as a whole can be sent to a second replica.
        f"http-request wait-for-body time {BODY_TIMEOUT_S}s",
        f"http-request del-header {only}",
        f"http-request set-header {only} 1 if {{ nbsrv le 1 }}",
        f"http-response set-status 503 if {{ status {FINAL_STATUS} }}",
        # The servers are looked at one by one only if they have half of what they may have, and not
        # before a replica has said its limit: until then this is not set.
        f"http-request set-var({own_limit}) var({limit}) if METH_POST",
        f"http-request set-var({own_limit}) var({limit}),mul(2) "
        f"if METH_POST {{ req.hdr({_PRIORITY}) -m found }}",
        f"http-request set-var(txn.sojourn_half) nbsrv,mul({own_limit}),div(2) if METH_POST",
        f"http-request set-var(txn.sojourn_limited) int(1) if METH_POST {{ nbsrv gt 0 }} "
        f"{{ be_conn,sub(txn.sojourn_half) ge 0 }} "
        f"{{ req.hdr_val(content-length) le {LARGEST_BODY_BYTES} }}",
        *looks,
        f"http-request deny deny_status 503 content-type application/json "
        f"hdr {REASON_HEADER.decode()} concurrency_limit "
        f"string '{FULL}' if {limited} !{room}",
        *told,
        "http-after-response set-header retry-after %[rand(5),add(1)] if { status 503 }",
        f"http-after-response set-header retry-after %[{random}] "
        f"if {{ status 503 }} {{ var({returns}) -m found }}",
        f"http-after-response set-header connection close if {closes}",
        f"http-after-response del-header {CLOSE_HEADER.decode()}",
        f"use-server %[var(txn.sojourn_room)] if {room} {full}",
    )


def status_on_wire(status: int, *, only_replica: bool) -> int:
    return FINAL_STATUS if only_replica and status == 503 else status


class HaproxyPeers:
    """The HAProxies that are connected to this replica, by the address of their node.

    No header names them, so no client can pass for one. The HAProxy of this node comes over the
    Unix socket, as a process of this user; the others from the addresses of the cluster's nodes.
    """

    def __init__(self) -> None:
        self.nodes: frozenset[str] = frozenset()
        self._connections: Counter[str] = Counter()

    def connected(self, peer: str | None) -> bool:
        """Return whether a new connection, named by `replica_sockets.peer_of`, is a HAProxy's."""
        if peer is None or (peer and peer not in self.nodes):
            return False
        self._connections[peer] += 1
        return True

    def left(self, peer: str) -> None:
        """Record that a connection of a HAProxy has ended."""
        self._connections[peer] -= 1
        if not self._connections[peer]:
            del self._connections[peer]

    def share(self, limit: int) -> int:
        """Return the part of a limit for each, rounded up."""
        return -(-limit // max(1, len(self._connections)))
