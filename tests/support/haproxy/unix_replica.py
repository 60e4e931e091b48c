"""A replica that HAProxy reaches over a Unix socket."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

from deployments.haproxy.replica_sockets import open_socket
from tests.support.haproxy.servers import Answer, Server

ANSWER = b"over Unix"


class _Server(Server):
    def answer(self, path: str, fields: Mapping[str, str]) -> Answer:
        return 200, ANSWER, {}


@contextmanager
def unix_replica(port: int) -> Iterator[None]:
    """Answer on the Unix socket of a port."""
    listener = open_socket(port)
    assert listener is not None
    with closing(_Server(listener)):
        yield
