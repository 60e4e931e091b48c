"""The program that Ray runs in HAProxy's place: it runs HAProxy and starts it again if it dies.

    sojourn-haproxy -db -f CONFIG [-dR] [-sf PID…] [-x SOCKET]

Ray checks its HAProxy every few seconds, replaces it after three failures, and then has to send it
the routes again. The supervisor sees the end of the process at once. It holds the listening sockets
itself, so clients that connect meanwhile wait for some tens of milliseconds; only what was in
HAProxy's hands is lost.

To Ray it looks like HAProxy: it takes the same arguments (`RAY_SERVE_HAPROXY_BINARY_PATH` names
it), answers at the same admin socket, and stops on the same signals. A reload starts a new
supervisor, which takes the sockets over from its predecessor. So does one that Ray starts because
the actor that managed the old one has died; until Ray has sent the routes, it leaves the
predecessor's HAProxy in charge.

HAProxy outlives a supervisor that is killed (Ray stops what it has started by ``SIGKILL``) and goes
on until Ray has started another supervisor, which replaces it likewise. A shell waits with each
HAProxy to end it if that does not happen.

Each reload starts a new Python process, so this package imports little but the standard library.
"""

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

from deployments.haproxy import ray_config, replica_sockets
from deployments.haproxy.admin_socket import AdminError, AdminRelay, ask, process_at
from deployments.haproxy.command import (
    HTTP_HOST,
    UnknownConfigError,
    find_haproxy,
    held_ms,
    parse_arguments,
)
from deployments.haproxy.listeners import Predecessor, open_listener, take_over
from deployments.haproxy.server_checks import ServerChecks, parse_servers

READY_TIMEOUT_S = 30.0
#: How often HAProxy is asked about its servers.
CHECK_EVERY_S = 0.25
#: Without Ray's actor and without a replica, HAProxy stops after this time.
IDLE_TIMEOUT_S = 10.0
#: How long HAProxy goes on without a supervisor.
ORPHAN_TIMEOUT_S = 60
#: For a predecessor to leave its ports.
_PORTS_TIMEOUT_S = 2.0
_BACKOFF_S = 0.1
_SERVERS = b"show stat -1 4 -1"
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
#: Wait until the supervisor has ended, and longer; then end the process unless it has changed.
_END_ORPHAN = 'read _; sleep "$0"; grep -qs "$2" /proc/"$1"/cmdline && kill -USR1 "$1"'


class Haproxy:
    """A HAProxy, or a supervisor in charge of one, by a descriptor that no other process takes."""

    def __init__(self, pid: int, child: "subprocess.Popen[bytes] | None" = None) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)
        self._child = child

    def fileno(self) -> int:
        return self._pidfd

    def signal(self, number: int) -> None:
        """Send a signal; nothing happens if the process has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def ended(self, timeout_s: float) -> bool:
        """Wait for the process to end; return whether it did."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(1e3 * timeout_s))

    def end(self) -> int:
        """Kill the process unless it has ended; return its status, 0 if it is not our child."""
        if not self.ended(0):
            self.signal(signal.SIGKILL)
            self.ended(READY_TIMEOUT_S)
        os.close(self._pidfd)
        return self._child.wait() if self._child is not None else 0


class Supervisor:
    """Run one HAProxy until a successor replaces it or Ray ends it."""

    def __init__(self, binary: str, arguments: list[str]) -> None:
        self._config_path, self._replaced = parse_arguments(arguments)
        self._config = ray_config.parse(self._config_path.read_text(), os.environ.get(HTTP_HOST))
        self._binary = binary
        self._parent = os.getppid()
        # Short names: the path of a Unix socket has 107 bytes at most.
        self._own_socket = self._config.admin_socket.with_name(f"{os.getpid()}.sock")
        self._amended = self._config_path.with_name(f"haproxy-{os.getpid()}.cfg")
        self._relay = AdminRelay(self._config.admin_socket, self._own_socket)
        self._haproxy: Haproxy | None = None
        self._watch: subprocess.Popen[bytes] | None = None
        self._stopping = False
        self._server_checks = ServerChecks()
        self._last_useful_s = time.monotonic()

    def run(self) -> int:
        """Serve until stopped; return the exit status."""
        # If the actor that started us dies, the raylet kills its process group; we serve on.
        os.setpgid(0, 0)
        for number in _SIGNALS:
            signal.signal(number, self._stop)
        try:
            return self._supervise() if self._begin() else self._end_haproxy() or 1
        finally:
            self._relay.close()
            for path in (self._amended, self._own_socket):
                path.unlink(missing_ok=True)

    def _begin(self) -> bool:
        """Start HAProxy, or leave the predecessor's in charge; return whether one works."""
        predecessor = take_over(self._config.admin_socket) or self._find_orphan()
        if predecessor is not None:
            self._relay.sockets = {one.getsockname()[1]: one for one in predecessor.sockets}
            if not self._replaced and not self._config.has_routes:
                _log(f"process {predecessor.pid} keeps serving until there are routes")
                self._haproxy = Haproxy(predecessor.pid)
                self._relay.haproxy_socket = predecessor.haproxy_socket
                self._relay.open()
                return True
            self._replaced = sorted({*self._replaced, predecessor.pid})
            if not predecessor.sockets:
                Haproxy(predecessor.pid).signal(signal.SIGUSR1)  # it leaves its ports
        if not self._start(self._replaced):
            return False
        self._relay.open()
        return True

    def _find_orphan(self) -> Predecessor | None:
        """Return the latest HAProxy whose supervisor was killed; remove what others have left."""
        found = None
        sockets = self._own_socket.parent.glob("[0-9]*.sock")
        for path in sorted(sockets, key=lambda one: one.stat().st_mtime):
            if pid := process_at(path):
                found = Predecessor(pid, path, [])
            else:
                path.unlink()
                self._amended.with_name(f"haproxy-{path.stem}.cfg").unlink(missing_ok=True)
        return found

    def _open_listeners(self) -> None:
        until_s = time.monotonic() + (_PORTS_TIMEOUT_S if self._replaced else 0)
        missing = [one for one in self._config.addresses if one.port not in self._relay.sockets]
        while missing:
            try:
                one = open_listener(missing[0])
                self._relay.sockets[missing.pop(0).port] = one
            except OSError:
                if time.monotonic() >= until_s:
                    raise
                time.sleep(0.001)

    def _start(self, replaced: list[int]) -> bool:
        """Start HAProxy; return whether it answers at its admin socket."""
        self._open_listeners()
        listeners = {port: one.fileno() for port, one in self._relay.sockets.items()}
        unavailable = self._config_path.with_name("503.http")
        unavailable.write_bytes(ray_config.UNAVAILABLE)
        over_unix = {port for port in self._config.local_ports if replica_sockets.is_served(port)}
        self._amended.write_text(
            ray_config.amend(
                self._config, self._own_socket, listeners, unavailable, held_ms(), over_unix
            )
        )
        command = [self._binary, "-db", "-f", str(self._amended)]
        if replaced:
            command += ["-sf", *map(str, replaced)]
        child = subprocess.Popen(command, pass_fds=list(listeners.values()))
        self._haproxy = haproxy = Haproxy(child.pid, child)
        patience_s = ORPHAN_TIMEOUT_S if self._config.has_routes else 0
        watch = ["sh", "-c", _END_ORPHAN, str(patience_s), str(child.pid), self._amended.name]
        self._watch = subprocess.Popen(watch, stdin=subprocess.PIPE)
        self._relay.haproxy_socket = self._own_socket
        if self._stopping:
            haproxy.signal(signal.SIGTERM)
        until_s = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < until_s and not haproxy.ended(0.01):
            if process_at(self._own_socket) is not None:
                return True
        return False

    def _supervise(self) -> int:
        started_s = checked_s = time.monotonic()
        while True:
            poll = select.poll()
            poll.register(self._relay, select.POLLIN)
            if self._haproxy is not None:
                poll.register(self._haproxy, select.POLLIN)
            ready = {descriptor for descriptor, _ in poll.poll(1e3 * CHECK_EVERY_S)}
            if self._haproxy is None or self._haproxy.fileno() in ready:
                status = self._end_haproxy()
                if self._stopping:
                    return status
                _log(f"HAProxy ended with status {status} and is started again")
                if time.monotonic() < started_s + 1:
                    time.sleep(_BACKOFF_S)
                if not self._start([]):
                    return self._end_haproxy() or 1
                started_s = time.monotonic()
            if self._relay.fileno() in ready:
                self._relay.answer_next()
            if time.monotonic() >= checked_s + CHECK_EVERY_S:
                checked_s = time.monotonic()
                self._check()

    def _check(self) -> None:
        """Judge the servers, and stop a HAProxy that nobody needs."""
        if self._stopping:
            return
        try:
            table = ask(self._relay.haproxy_socket, _SERVERS).decode()
            servers = parse_servers(table)
            for command in self._server_checks.look(servers, time.monotonic()):
                _log(command)
                ask(self._relay.haproxy_socket, command.encode())
        except AdminError:
            return
        except (KeyError, ValueError, AttributeError, TypeError) as error:
            _log(f"HAProxy's statistics are not understood: {error!r}")
            return
        if os.getppid() == self._parent or any(server.up for server in servers):
            self._last_useful_s = time.monotonic()
        elif time.monotonic() > self._last_useful_s + IDLE_TIMEOUT_S:
            _log("the actor that managed it and all replicas are gone: HAProxy stops")
            self._stop(signal.SIGTERM)

    def _stop(self, number: int, _frame: object = None) -> None:
        """Pass a signal on to HAProxy: ``SIGUSR1`` lets it finish its requests, others end it."""
        self._stopping = True
        for one in self._relay.sockets.values():
            one.close()
        if self._haproxy is not None:
            self._haproxy.signal(number)

    def _end_haproxy(self) -> int:
        """Return the exit status of HAProxy; kill it first if it started but does not respond."""
        if self._watch is not None:
            self._watch.kill()
            self._watch.communicate()
        haproxy, self._haproxy = self._haproxy, None
        return haproxy.end() if haproxy is not None else 0


def _log(message: str) -> None:
    sys.stderr.write(f"sojourn-haproxy: {message}\n")
    sys.stderr.flush()


def main() -> int:
    try:
        return Supervisor(find_haproxy(), sys.argv[1:]).run()
    except (OSError, UnknownConfigError) as error:
        # Alone, HAProxy would open Ray's pages to the network, and know none of our limits.
        _log(f"HAProxy does not start: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
