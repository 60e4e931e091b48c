"""The HAProxy configuration that Ray writes, and what Sojourn changes in it.

Ray renders the file anew for every change of the replicas and offers settings for only some of its
lines (`deployments.haproxy.routing`). The supervisor hands HAProxy a changed copy:

- Replicas of this node are reached over Unix sockets (`deployments.haproxy.replica_sockets`).
- HAProxy inherits its listening sockets (``bind fd@N``), so clients that connect while it is
  started again wait in the socket's queue and are not refused.
- Statistics and metrics are open to this machine only if the service itself is. The admin socket,
  which Ray opens to every user of the machine, is the supervisor's alone.
- It waits for a connection to a replica for a fraction of a second, and for a request for a while.
- Requests may have as many header fields as the replicas take.
- It refuses requests that no replica could answer in time (`deployments.haproxy.refusals`).
- It logs no requests unless the operator names a target: Ray's default is one datagram per request
  to a port on which hardly anything ever listens.
- It starts even if it may not open files for all the clients that it may serve.
- Without any replica to send a request to, or if one dies and the request cannot be sent to
  another, clients get 503 and not 500, also while HAProxy has no routes yet (503, not 404). All
  errors of HAProxy's own are JSON.
- Serve's own proxy holds requests until there is a replica: it may know of one sooner. Where there
  always should be one, HAProxy reaches the proxy through a section of its own (`_hold_within_sla`).
  That ends while the SLA still leaves time for a refusal; then, or if the proxy is down, too,
  clients get 503.
"""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from deployments.access.web_pages import is_loopback
from deployments.haproxy import replica_sockets
from deployments.haproxy.command import UnknownConfigError
from deployments.haproxy.refusals import CLOSE_HEADER, FINAL_STATUS, REASON_HEADER, rules

#: How long a client may take to send a request, or as much of it as fits into a buffer.
REQUEST_TIMEOUT_S = 30
#: The most header fields of a request: as many as a replica takes, and HAProxy's own.
MAX_FIELDS = 256 + 8
#: HAProxy keeps this much memory of each kind at hand; a large buffer is costly to ask for.
HOT_MEMORY_BYTES = 64 << 20
#: How long HAProxy waits for a connection to a replica, and after a failure before the next try.
#: Ray's setting has whole seconds only; another than its default is left alone.
CONNECT_TIMEOUT_MS = 250
_CONNECT_AS_IT_COMES = "timeout connect 5s\n"
_LOG_AS_IT_COMES = "    log 127.0.0.1:514 local0 info\n"

#: HAProxy's own errors, besides `UNAVAILABLE`.
_ERROR_MESSAGES = {
    400: "the client closed its sending side before the answer",
    408: f"the request must arrive within {REQUEST_TIMEOUT_S} s",
    413: "the body is too large",
    422: "the request cannot be processed",
    500: "internal error of the load balancer",
    501: "the method is not supported",
    502: "the replica ended before its answer; it may have computed the request",
    504: "the replica did not answer in time",
}
_MESSAGE = b'{"error":"no replica can answer now; please retry"}'
#: The answer if there is no replica, or none can be reached.
UNAVAILABLE = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\nRetry-After: 1\r\n%b: no_replica\r\n%b: 1\r\n\r\n%b"
    % (len(_MESSAGE), REASON_HEADER, CLOSE_HEADER, _MESSAGE)
)
_SOCKET = re.compile(r"^(\s*stats socket )(\S+) mode \d+ (.*)$", re.MULTILINE)
_BIND = re.compile(r"^(\s*bind )(\S*):(\d+)( .*)?$", re.MULTILINE)
_SECTION = re.compile(r"^(?=\S)", re.MULTILINE)
_BACKEND = re.compile(r"backend (\S+)")
#: Serve's own proxy.
_PROXY = re.compile(r"^\s*server (\S+ \S+) check backup\n", re.MULTILINE)
#: A server that is no backup.
_REPLICA = re.compile(r"^\s*server (\S+) (?!.* backup$)", re.MULTILINE)
_SENT_AGAIN = re.compile(r"^\s*retry-on .*empty-response", re.MULTILINE)
#: A replica of this node; other lines with such an address are of Serve's proxy.
_LOCAL_REPLICA = re.compile(r"^(\s*server \S+ )127\.0\.0\.1:(\d+)\b(?! .* backup$)", re.MULTILINE)
_ERROR_FILE = re.compile(r"^(\s*errorfile (50[234]) ).*$", re.MULTILINE)
_UNKNOWN_PATH = re.compile(r"^(\s*http-request return )status 404 .*$", re.MULTILINE)


class Address(NamedTuple):
    """An address to listen on; the host is empty for all interfaces."""

    host: str
    port: int


class RayConfig(NamedTuple):
    """A configuration as Ray writes it.

    `addresses` are in the order of the ``bind`` lines. It `has_routes` unless Ray has just started
    HAProxy, or is about to stop it. `local_ports` are the TCP ports of the replicas of this node.
    """

    text: str
    admin_socket: Path
    addresses: tuple[Address, ...]
    has_routes: bool
    local_ports: frozenset[int]


def backend_name(application: str) -> str:
    """Return how Ray names the backend of an application (``get_safe_name`` in its `haproxy`)."""
    name = application.replace("#", "-").replace("/", ".")
    return re.sub(r"[^A-Za-z0-9._-]+", "_", f"http-{name}")


def parse(text: str, host: str | None = None) -> RayConfig:
    """Read a configuration that Ray wrote.

    The service is to listen on `host` instead, if given; the other addresses stay as they are.
    Raise an `UnknownConfigError` if there is no admin socket, or no frontend for HTTP.
    """
    socket = _SOCKET.search(text)
    if socket is None:
        raise UnknownConfigError("HAProxy's configuration has no admin socket")
    service = text.partition("\nfrontend http_frontend\n")[2]
    bind = _BIND.search(service)
    if bind is None:
        raise UnknownConfigError("HAProxy's configuration has no frontend for HTTP")
    own = _address(bind)
    addresses = []
    for address in map(_address, _BIND.finditer(text)):
        if host is not None and address == own:
            address = Address(host.strip("*"), own.port)
        elif not address.host and is_loopback(own.host):
            address = Address(own.host, address.port)
        addresses.append(address)
    return RayConfig(
        text,
        Path(socket[2]),
        tuple(addresses),
        has_routes="\n    use_backend " in text,
        local_ports=frozenset(int(found[2]) for found in _LOCAL_REPLICA.finditer(text)),
    )


def _address(bind: re.Match[str]) -> Address:
    return Address(bind[2].strip("*"), int(bind[3]))


def amend(
    config: RayConfig,
    worker_socket: Path,
    listeners: Mapping[int, int],
    unavailable: Path,
    held_ms: Mapping[str, int] = MappingProxyType({}),
    over_unix: Collection[int] = (),
) -> str:
    """Return the configuration that HAProxy is to run.

    The `listeners` are open file descriptors by the ports of `config.addresses`, and `unavailable`
    is a file with `UNAVAILABLE`. `held_ms` limits by backend how long a request without a replica
    is held. The replicas on this node with the ports `over_unix` are reached over their Unix
    sockets.
    """
    text = _BIND.sub(
        lambda found: f"{found[1]}fd@{listeners[int(found[3])]}{found[4] or ''}", config.text
    )
    text = _SOCKET.sub(
        lambda found: f"{found[1]}{worker_socket} mode 600 {found[3]}", text, count=1
    )
    text = _LOCAL_REPLICA.sub(
        lambda found: (
            found[1] + replica_sockets.haproxy_address(int(found[2]))
            if int(found[2]) in over_unix
            else found[0]
        ),
        text,
    )
    text = text.replace(_CONNECT_AS_IT_COMES, f"timeout connect {CONNECT_TIMEOUT_MS}ms\n", 1)
    text = text.replace(_LOG_AS_IT_COMES, "", 1)
    # 502 is for what a replica has left and HAProxy cannot send to another: mostly bodies that are
    # larger than its buffer. Where it may send requests again, clients may, too.
    lost = ("502", "503") if _SENT_AGAIN.search(text) else ("503",)
    text = _ERROR_FILE.sub(
        lambda found: found[1] + str(unavailable) if found[2] in lost else _error(int(found[2])),
        text,
    )
    defaults = [_error(status) for status in _ERROR_MESSAGES if status < 502]
    if "timeout http-request" not in text:
        defaults.append(f"    timeout http-request {REQUEST_TIMEOUT_S}s")
    text = text.replace("defaults\n", "\n".join(["defaults", *defaults, ""]), 1)
    if not config.has_routes:
        text = _UNKNOWN_PATH.sub(rf"\g<1>status 503 errorfile {unavailable}", text)
    text = _after(text, "tune.bufsize", f"tune.memory.hot-size {HOT_MEMORY_BYTES}")
    text = _after(text, "tune.bufsize", f"tune.http.maxhdr {MAX_FIELDS}")
    text = _after(text, "tune.bufsize", "no strict-limits")
    sections: list[str] = []
    for section in _SECTION.split(text):
        if found := _BACKEND.match(section):
            for rule in reversed(rules(found[1], _REPLICA.findall(section))):
                section = _after(section, "http-reuse always", rule)
            if found[1] in held_ms:
                listener = f"abns@sojourn-{worker_socket.stem}-{len(sections)}"
                section = _hold_within_sla(section, held_ms[found[1]], listener, unavailable)
        sections.append(section)
    return "".join(sections)


def _error(status: int) -> str:
    body = f'{{"error":"{_ERROR_MESSAGES[status]}"}}'
    return f"    http-error status {status} content-type application/json string '{body}'"


def _hold_within_sla(backend: str, held_ms: int, listener: str, unavailable: Path) -> str:
    """Return a backend's section, and one through which it reaches Serve's proxy.

    The timeout of the second one also holds for what a dying replica has left. Its refusals are
    final: another try would be held as long.
    """
    name = f"sojourn-held-{backend.split()[1]}"
    proxies = "".join(f"    server {one}\n" for one in _PROXY.findall(backend))
    return (
        f"{_PROXY.sub('', backend).rstrip()}\n    server {name} {listener} no-check backup\n"
        f"listen {name}\n    bind {listener}\n    no log\n    retries 0\n"
        f"    timeout server {held_ms}ms\n    errorfile 504 {unavailable}\n"
        f"    http-after-response set-status {FINAL_STATUS} if {{ status 503 }}\n{proxies}"
    )


def _after(text: str, line: str, added: str) -> str:
    """Return `text` with `added` after each line that begins with `line`, unless it is there."""
    if added in text:
        return text
    return re.sub(
        rf"^([ \t]*)({re.escape(line)}.*)$", rf"\1\2\n\1{added}", text, flags=re.MULTILINE
    )
