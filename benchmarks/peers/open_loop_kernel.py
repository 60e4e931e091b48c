"""The compiled loop of `benchmarks.peers.open_loop`: no interpreter, only system calls.

It calls the C library of Linux, whose structures it lays out as arrays of 64-bit words.
"""

import ctypes
import platform
import socket
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np

from loadtests.records import Outcome

#: Longest answer, head and all.
ANSWER_BYTES = 8192
_EPOLL_CTL_DEL = 2
# Linux packs an epoll_event on x86-64 only: in words of 32 bits, its length and where the file is.
_EVENT_WORDS, _FILE_WORD = (3, 1) if platform.machine() in ("x86_64", "AMD64") else (4, 2)

_F = TypeVar("_F", bound=Callable[..., Any])
_njit: Any = numba.njit


def _compiled(function: _F) -> _F:
    return cast(_F, _njit(nogil=True)(function))


libc = ctypes.CDLL(None)


def _function(name: str, result: Any, *arguments: Any) -> Any:
    found = getattr(libc, name)
    found.restype, found.argtypes = result, arguments
    return found


_int, _address, _size = ctypes.c_int, ctypes.c_void_p, ctypes.c_ssize_t
_clock_gettime = _function("clock_gettime", _int, _int, _address)
_epoll_pwait2 = _function("epoll_pwait2", _int, _int, _address, _int, _address, _address)
_epoll_ctl = _function("epoll_ctl", _int, _int, _int, _int, _address)
_send = _function("send", _size, _int, _address, _size, _int)
_recvmsg = _function("recvmsg", _size, _int, _address, _int)
_MSG_DONTWAIT, _MSG_NOSIGNAL = int(socket.MSG_DONTWAIT), int(socket.MSG_NOSIGNAL)
_OK, _CONNECTION, _TIMEOUT = int(Outcome.OK), int(Outcome.CONNECTION), int(Outcome.TIMEOUT)


@_compiled
def _now_ns(clock: Any) -> Any:
    _clock_gettime(0, clock.ctypes)
    return clock[0] * 1_000_000_000 + clock[1]


@_compiled
def _ends_at(answer: Any, length: int) -> int:
    """Return the length of the whole answer, or -1 if its head is not complete."""
    for end in range(3, length):
        if answer[end] == 10 and answer[end - 1] == 13 and answer[end - 2] == 10:
            for place in range(14, end):
                # The colon of "content-length:", in any case.
                colon = answer[place] == 58 and (answer[place - 1] | 32) == 104
                if colon and answer[place - 7] == 45 and (answer[place - 14] | 32) == 99:
                    body, digit = 0, place + 1
                    while answer[digit] == 32:
                        digit += 1
                    while 48 <= answer[digit] <= 57:
                        body = 10 * body + (answer[digit] - 48)
                        digit += 1
                    return end + 1 + body
            return end + 1
    return -1


@_compiled
def follow(
    due_ns: Any,
    start_ns: int,
    patience_ns: int,
    requests: Any,
    starts: Any,
    epoll: int,
    files: Any,
    connection_of: Any,
    received_ns: Any,
    read_ns: Any,
    outcome: Any,
    kept: Any,
    kept_bytes: Any,
    keep_every: int,
) -> None:
    """Send each request when it is due, and take the answers; times are those of the real clock."""
    count, connections, bodies = due_ns.size, files.size, starts.size - 1
    clock, timeout = np.zeros(2, np.int64), np.zeros(2, np.int64)
    events = np.zeros(connections * _EVENT_WORDS, np.int32)
    buffers = np.zeros((connections, ANSWER_BYTES), np.uint8)
    filled = np.zeros(connections, np.int64)
    carries = np.full(connections, -1, np.int64)
    # The connections that are free, those used longest ago first: servers close idle ones.
    idle = np.arange(connections)
    first_idle, idle_count, following, in_flight = 0, connections, 0, 0
    open_count = connections
    # struct msghdr, struct iovec, and room for the kernel's time as a control message.
    message, vector, control = np.zeros(7, np.int64), np.zeros(2, np.int64), np.zeros(16, np.int64)
    message[2], message[3], message[4] = vector.ctypes.data, 1, control.ctypes.data
    end_ns = start_ns + patience_ns
    if count:
        end_ns += due_ns[-1]
    now_ns = _now_ns(clock)
    while open_count and (following < count or in_flight) and now_ns < end_ns:
        while following < count and idle_count and start_ns + due_ns[following] <= now_ns:
            connection = idle[first_idle]
            first_idle = (first_idle + 1) % connections
            idle_count -= 1
            body = following % bodies
            length = starts[body + 1] - starts[body]
            request = requests[starts[body] : starts[body + 1]]
            if _send(files[connection], request.ctypes, length, _MSG_NOSIGNAL) == length:
                carries[connection] = following
                filled[connection] = 0
                in_flight += 1
            else:
                outcome[following] = _CONNECTION
                open_count -= 1
            following += 1
        wait_ns = end_ns - now_ns
        if following < count and idle_count:
            wait_ns = min(wait_ns, start_ns + due_ns[following] - now_ns)
        wait_ns = max(wait_ns, 0)
        timeout[0], timeout[1] = wait_ns // 1_000_000_000, wait_ns % 1_000_000_000
        ready = _epoll_pwait2(epoll, events.ctypes, connections, timeout.ctypes, 0)
        for event in range(ready):
            connection = connection_of[events[event * _EVENT_WORDS + _FILE_WORD]]
            answer = buffers[connection]
            vector[0] = answer.ctypes.data + filled[connection]
            vector[1] = ANSWER_BYTES - filled[connection]
            message[5] = control.size * 8
            got = _recvmsg(files[connection], message.ctypes, _MSG_DONTWAIT)
            number = carries[connection]
            if got <= 0:
                if vector[1] > 0 and got < 0:
                    continue
                # The server closed the connection.
                open_count -= 1
                if number >= 0:
                    outcome[number] = _CONNECTION
                    carries[connection] = -1
                    in_flight -= 1
                else:
                    place = 0
                    while idle[(first_idle + place) % connections] != connection:
                        place += 1
                    idle[(first_idle + place) % connections] = idle[first_idle]
                    first_idle = (first_idle + 1) % connections
                    idle_count -= 1
                _epoll_ctl(epoll, _EPOLL_CTL_DEL, files[connection], 0)
                continue
            filled[connection] += got
            ends_at = _ends_at(answer, filled[connection])
            if number < 0 or ends_at < 0 or filled[connection] < ends_at:
                continue
            read_ns[number] = _now_ns(clock)
            received_ns[number] = control[2] * 1_000_000_000 + control[3]
            status = 0
            for place in range(9, 12):
                status = 10 * status + (answer[place] - 48)
            outcome[number] = _OK if status == 200 else status
            if status == 200 and number % keep_every == 0:
                kept[number // keep_every, :ends_at] = answer[:ends_at]
                kept_bytes[number // keep_every] = ends_at
            carries[connection] = -1
            in_flight -= 1
            idle[(first_idle + idle_count) % connections] = connection
            idle_count += 1
        now_ns = _now_ns(clock)
    for connection in range(connections):
        if carries[connection] >= 0:
            outcome[carries[connection]] = _TIMEOUT
