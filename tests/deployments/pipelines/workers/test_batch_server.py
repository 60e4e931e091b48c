"""The batch server of a replica."""

import os
import socket

from deployments.pipelines.workers.arena import Arena
from deployments.pipelines.workers.child import BATCH, MESSAGE, START
from tests.support.pipelines.stage_replica import serve
from tests.support.waiting import LIMIT_S, wait_for


class Peer:
    """A pipeline at the other end of a socket."""

    def __init__(self, folder):
        (path,) = folder.iterdir()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(LIMIT_S)
        self.socket.connect(str(path))
        self.requests, self.replies = Arena(), Arena()

    def start(self):
        message = MESSAGE.pack(START, 0)
        arenas = [self.requests.descriptor, self.replies.descriptor]
        socket.send_fds(self.socket, [message], arenas)

    def run(self, items):
        self.socket.send(MESSAGE.pack(BATCH, self.requests.write(items)))

    def receive(self):
        kind, size = MESSAGE.unpack(self.socket.recv(MESSAGE.size))
        return kind, self.replies.read(size, copy=True) if size else None

    def close(self):
        self.socket.close()
        self.requests.close()
        self.replies.close()


def test_a_replica_without_a_descriptor_left_serves_the_others(tmp_path):
    server = serve(lambda items: items, tmp_path)
    served, refused = Peer(tmp_path), Peer(tmp_path)
    served.start()
    assert served.receive() == (START, None)
    # Of what it is sent, nothing arrives.
    refused.socket.send(MESSAGE.pack(START, 0))
    assert refused.socket.recv(MESSAGE.size) == b""
    refused.close()
    served.run([1])
    assert served.receive() == (BATCH, [1])
    served.close()
    server.close(LIMIT_S)
    assert wait_for(lambda: not os.listdir(tmp_path))
