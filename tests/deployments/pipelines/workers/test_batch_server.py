"""The batch server of a replica, and pipelines that are slow to read."""

import math
import os
import socket
from collections import Counter

from deployments.pipelines.workers.arena import Arena
from deployments.pipelines.workers.batch_server import FREE, TAKEN
from deployments.pipelines.workers.child import BATCH, MESSAGE, START
from tests.support.pipelines.stage_replica import serve
from tests.support.waiting import LIMIT_S, wait_for

#: So many batches of another pipeline fill the socket of one that does not read.
MANY = 1000


class Peer:
    """A pipeline at the other end of a socket."""

    def __init__(self, folder):
        (path,) = folder.iterdir()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(LIMIT_S)
        self.socket.connect(str(path))
        self.requests, self.replies = Arena(), Arena()

    def start(self):
        message = MESSAGE.pack(START, 0, math.inf)
        arenas = [self.requests.descriptor, self.replies.descriptor]
        socket.send_fds(self.socket, [message], arenas)

    def run(self, items):
        self.socket.send(MESSAGE.pack(BATCH, self.requests.write(items), math.inf))

    def receive(self):
        kind, size, _ = MESSAGE.unpack(self.socket.recv(MESSAGE.size))
        return kind, self.replies.read(size, copy=True) if size else None

    def until(self, wanted):
        """Read until a message of this kind; return its content and how many came before it."""
        before: Counter[int] = Counter()
        while True:
            kind, content = self.receive()
            if kind == wanted:
                return content, before
            before[kind] += 1

    def close(self):
        self.socket.close()
        self.requests.close()
        self.replies.close()


def test_the_outcome_of_a_batch_reaches_a_pipeline_that_was_slow_to_read(tmp_path):
    server = serve(lambda items: items, tmp_path)
    slow, other = Peer(tmp_path), Peer(tmp_path)
    for peer in (slow, other):
        peer.start()
        peer.until(START)
    for number in range(MANY):
        other.run([number])
        assert other.until(BATCH)[0] == [number]
    slow.run(["mine"])
    assert other.until(FREE)[1] == {TAKEN: 1}  # the slow one's batch has ended
    content, before = slow.until(BATCH)
    assert content == ["mine"]
    assert 0 < before[TAKEN] < MANY
    slow.run([2])
    assert slow.until(BATCH)[0] == [2]
    for peer in (slow, other):
        peer.close()
    server.close(LIMIT_S)


def test_a_pipeline_that_was_slow_to_read_hears_how_it_is_now(tmp_path):
    server = serve(lambda items: items, tmp_path)
    slow, other = Peer(tmp_path), Peer(tmp_path)
    for peer in (slow, other):
        peer.start()
        peer.until(START)
    for _ in range(MANY):
        other.run([0])
        other.until(BATCH)
    other.close()
    # It reads again, and asks: the last that it heard of the other is that it left.
    kinds = []
    slow.run([1])
    while BATCH not in kinds:
        kinds.append(slow.receive()[0])
    assert kinds[-2] == FREE
    slow.close()
    server.close(LIMIT_S)


def test_a_replica_without_a_descriptor_left_serves_the_others(tmp_path):
    server = serve(lambda items: items, tmp_path)
    served, refused = Peer(tmp_path), Peer(tmp_path)
    served.start()
    served.until(START)
    # Of what it is sent, nothing arrives.
    refused.socket.send(MESSAGE.pack(START, 0, math.inf))
    assert refused.socket.recv(MESSAGE.size) == b""
    refused.close()
    served.run([1])
    assert served.until(BATCH)[0] == [1]
    served.close()
    server.close(LIMIT_S)
    assert wait_for(lambda: not os.listdir(tmp_path))
