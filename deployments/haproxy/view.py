"""HAProxy's view of a replica: how long the requests take that it answers.

A replica cannot see what waits in HAProxy, or what was refused and tried again. HAProxy measures
the parts of it, as running means per server; its admin socket tells them
(`deployments.haproxy.admin_answers`).

Its clocks do not count what a request waits until HAProxy reads it, because its thread is at work
or waits for a CPU. But the questions to its admin socket wait for the same thread, and its answer
says when that read them. So they are asked at random times (Poisson), which see what arriving
requests see.
"""

import asyncio
import logging
import os
import random
import re
import socket
import time
from collections import deque
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from deployments.haproxy.admin_answers import (
    HaproxyAnswerError,
    MeanTimes,
    ServerTimes,
    means_since,
    parse_server_times,
)
from deployments.haproxy.denied_requests import DeniedRequests

logger = logging.getLogger("sojourn.http")

#: New requests until the next look, on average.
LOOK_EVERY_REQUESTS = 128
#: Where Ray puts the socket, unless the environment says otherwise.
_SOCKET_VARIABLE, _DEFAULT_SOCKET = "RAY_SERVE_HAPROXY_SOCKET_PATH", "/tmp/haproxy-serve/admin.sock"
_TIMEOUT_S = 2.0
#: When its thread read this (`date_now`); of the statistics, those of backends and servers.
_COMMANDS = b"show activity;show stat -1 6 -1\n"
_READ_AT = re.compile(r"^date_now: ([\d.]+)$", re.MULTILINE)
#: More waits than this between two calls of `HaproxyView.take_unread_ms` are not kept.
_WAITS_KEPT = 64
#: The waits of this time are a sample that predictions can draw from; fewer than the first number
#: are filled up with older ones.
_SAMPLE_S = 20.0
_SAMPLE_LEAST, _SAMPLE_MOST = 50, 512
#: A question takes an idle HAProxy 0.1 to 0.3 ms where other processes want the cores, too. What
#: takes longer waits: so a HAProxy that is never idle cannot pass for a slow one.
_OWN_MOST_MS = 0.5
#: Between two looks, on average.
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 1.0
#: HAProxy is away for a moment when it is started again, and ends before the replicas do.
WARN_AFTER_S = 15.0


def _own_ms(of_questions_ms: NDArray[np.float64]) -> float:
    """Return what a question takes itself, of a sample of their waits, shape (questions,).

    A question waits to be accepted, even by an idle HAProxy, which reads the shortest of them;
    requests come on connections that are open.
    """
    if not of_questions_ms.size:
        return 0.0
    return min(float(np.median(of_questions_ms)), _OWN_MOST_MS)


def _waits_of_requests_ms(of_questions_ms: NDArray[np.float64], own_ms: float) -> list[float]:
    """Return what requests wait where questions, which take `own_ms` themselves, wait so long.

    What takes a question up to twice as long as it takes itself is no wait.
    """
    waits_ms = np.where(of_questions_ms <= 2 * own_ms, 0.0, of_questions_ms - own_ms)
    return list(waits_ms.tolist())


def socket_path_on(node_id: str) -> Path:
    """Return the path of HAProxy's admin socket on a node: Ray puts it into a folder of its own."""
    path = Path(os.environ.get(_SOCKET_VARIABLE, _DEFAULT_SOCKET))
    return path.parent / node_id / path.name


class HaproxyView:
    """Follow the times that HAProxy's requests to one replica take.

    HAProxy's means are those of its latest requests, a twentieth of a second on a busy server, and
    one look samples one wait. So there is a look for every hundred requests or so, once to ten
    times a second.

    Parameters
    ----------
    server_ends_with : str
        How HAProxy's name of the server ends: Ray ends it with the replica's unique id.
    socket_path : Path
        HAProxy's admin socket.
    """

    def __init__(self, server_ends_with: str, socket_path: Path) -> None:
        self._server = server_ends_with
        self._path = socket_path
        self._before: ServerTimes | None = None
        self._looked_s = 0.0
        self._pause_s = LONGEST_PAUSE_S
        self._requests = 0
        self._total_ms = self._earlier_tries_ms = 0.0
        self._unread_ms: deque[float] = deque(maxlen=_WAITS_KEPT)
        self._sample: deque[tuple[float, float]] = deque(maxlen=_SAMPLE_MOST)
        self._read_s = time.monotonic()
        self._warned = False
        self._seen_s = time.monotonic()
        self._denied = DeniedRequests(server_ends_with)

    def _latest_sample_ms(self) -> NDArray[np.float64]:
        """Return how long the questions of the last seconds waited, shape (questions,)."""
        asked_s, sampled_ms = np.reshape(np.array(self._sample), (-1, 2)).T
        new = int(np.count_nonzero(asked_s > time.monotonic() - _SAMPLE_S))
        return np.asarray(sampled_ms[-max(new, _SAMPLE_LEAST) :])

    def take_denied(self) -> int:
        """Return this replica's part of the requests that HAProxy refused since the last call."""
        return self._denied.take()

    async def watch(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            # From when the latest question was read: those due before were counted with it.
            next_s = self._read_s + random.expovariate(1 / self._pause_s)
            await asyncio.sleep(max(0.0, next_s - time.monotonic()))
            await self.look()

    async def look(self) -> None:
        """Take in HAProxy's means; that they have not been seen for long is logged once."""
        try:
            _, _, table = (await self._ask_and_time()).partition("# pxname")
            now = parse_server_times("# pxname" + table, self._server)
            self._denied.observe("# pxname" + table)
            self._seen_s = time.monotonic()
        except (HaproxyAnswerError, KeyError, ValueError) as error:
            if not self._warned and time.monotonic() > self._seen_s + WARN_AFTER_S:
                self._warned = True
                logger.warning("waits in HAProxy are not seen: %s", error)
            now = None
        before, self._before = self._before, now
        now_s = time.monotonic()
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        self._pause_s = LONGEST_PAUSE_S
        if before is None or now is None or now.requests < before.requests:
            return
        means = means_since(before, now)
        if means is None:
            self._before = before
            return
        requests = now.requests - before.requests
        pause_s = LOOK_EVERY_REQUESTS * passed_s / requests
        self._pause_s = min(max(SHORTEST_PAUSE_S, pause_s), LONGEST_PAUSE_S)
        self._requests += requests
        self._total_ms += requests * means.total_ms
        self._earlier_tries_ms += requests * means.earlier_tries_ms

    def take(self) -> MeanTimes | None:
        """Return the mean times since the last call; None if they are not known."""
        requests = self._requests
        if not requests:
            return None
        total_ms, tries_ms = self._total_ms / requests, self._earlier_tries_ms / requests
        means = MeanTimes(max(0.0, total_ms), max(0.0, tries_ms))
        self._requests, self._total_ms, self._earlier_tries_ms = 0, 0.0, 0.0
        return means

    def take_unread_ms(self) -> list[float]:
        """Return how long requests wait until HAProxy reads them: a sample since the last call."""
        own_ms = _own_ms(self._latest_sample_ms())
        unread_ms = _waits_of_requests_ms(np.array(self._unread_ms), own_ms)
        self._unread_ms.clear()
        return unread_ms

    async def _ask_and_time(self) -> str:
        """Ask HAProxy, and note how long that waited to be read."""
        asked_s = time.time()
        try:
            answer = await self._ask()
        except TimeoutError as error:
            self._note_wait(asked_s, asked_s + _TIMEOUT_S)
            raise HaproxyAnswerError(f"{self._path}: {error!r}") from error
        except (OSError, UnicodeDecodeError) as error:
            self._note_wait(asked_s, None)
            raise HaproxyAnswerError(f"{self._path}: {error!r}") from error
        read_at = _READ_AT.search(answer)
        if read_at is not None:
            self._note_wait(asked_s, float(read_at[1]))
        else:  # the supervisor gives up a HAProxy that does not answer it
            self._note_wait(asked_s, None if answer else time.time())
        return answer

    def _note_wait(self, asked_s: float, read_s: float | None) -> None:
        """Note the wait of a question, and of those due since then: they were read with it."""
        # HAProxy tells the time of day, which somebody may set: so a wait is bounded.
        wait_s = -1.0 if read_s is None else min(read_s - asked_s, _TIMEOUT_S)
        ago_s = min(time.time() - asked_s, _TIMEOUT_S)
        self._read_s = time.monotonic() - max(0.0, ago_s - max(0.0, wait_s))
        due_s, now_s = 0.0, time.monotonic()
        while due_s <= wait_s:
            self._unread_ms.append(1e3 * (wait_s - due_s))
            self._sample.append((now_s, 1e3 * (wait_s - due_s)))
            due_s += random.expovariate(1 / self._pause_s)

    async def _ask(self) -> str:
        loop, answer = asyncio.get_running_loop(), bytearray()
        with socket.socket(socket.AF_UNIX) as client:
            # At once, so that the wait is HAProxy's alone; the kernel takes both for it.
            client.setblocking(False)
            client.connect(str(self._path))
            client.send(_COMMANDS)
            async with asyncio.timeout(_TIMEOUT_S):
                while part := await loop.sock_recv(client, 1 << 16):
                    answer += part
        return answer.decode()
