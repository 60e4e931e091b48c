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

Ray stops what it has started by ``SIGKILL``, and so may the kernel. Somebody must then decide
whether HAProxy goes on, so each supervisor has a deputy: a fork that sleeps until the supervisor is
killed, and takes its place.

Each reload starts a new Python process, so this package imports little but the standard library.
"""

import os
import select
import signal
import socket
import subprocess
import sys
import time

from deployments.haproxy import ray_config, replica_sockets
from deployments.haproxy.admin_socket import AdminError, AdminRelay, ask, process_at
from deployments.haproxy.command import (
    HTTP_HOST,
    UnknownConfigError,
    find_haproxy,
    held_ms,
    max_clients,
    parse_arguments,
)
from deployments.haproxy.listeners import HAND_OVER, hand_over, open_listener, take_over
from deployments.haproxy.process import Haproxy, ended, open_parent_of
from deployments.haproxy.ray_config import REFUSALS
from deployments.haproxy.server_checks import ServerChecks, parse_servers

READY_TIMEOUT_S = 30.0
#: Where a deputy that has taken over answers its successor, beside Ray's admin socket.
DEPUTY_SOCKET = "deputy.sock"
#: How often HAProxy is asked about its servers, and after how many failures it is killed.
CHECK_EVERY_S = 0.25
MAX_SILENT_CHECKS = 3
#: Without Ray's actor and without a replica, HAProxy stops after this time.
ORPHAN_TIMEOUT_S = 30.0
#: Starts in a row that may fail before Ray is left to decide.
MAX_FAILED_STARTS = 10
_BACKOFF_S = 0.1
_SERVERS = b"show stat -1 4 -1"
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class Supervisor:
    """Run one HAProxy until a successor replaces it or Ray ends it."""

    def __init__(self, binary: str, arguments: list[str]) -> None:
        self._config_path, self._shares_ports, self._replaced = parse_arguments(arguments)
        self._config = ray_config.parse(self._config_path.read_text(), os.environ.get(HTTP_HOST))
        self._binary = binary
        self._parent = os.getppid()
        self._raylet = open_parent_of(self._parent)
        admin_socket = self._config.admin_socket
        # Short names: the path of a Unix socket has 107 bytes at most.
        self._own_socket = admin_socket.with_name(f"{os.getpid()}.sock")
        self._deputy_socket = admin_socket.with_name(DEPUTY_SOCKET)
        self._amended = self._config_path.with_name(f"haproxy-{os.getpid()}.cfg")
        #: By port.
        self._sockets: dict[int, socket.socket] = {}
        self._haproxy: Haproxy | None = None
        self._owns_haproxy = self._stopping = False
        self._deputy = 0
        self._silent_checks = 0
        self._server_checks = ServerChecks()
        self._last_useful_s = time.monotonic()
        self._relay = AdminRelay(admin_socket, self._own_socket, {HAND_OVER: self._hand_over})

    def run(self) -> int:
        """Serve until stopped; return the exit status."""
        # If the actor that started us dies, the raylet kills its process group; we serve on.
        os.setpgid(0, 0)
        for number in _SIGNALS:
            signal.signal(number, self._stop)
        try:
            return self._supervise() if self._begin() else self._end_haproxy() or 1
        finally:
            self._end_deputy()
            self._relay.close()
            for path in (self._amended, self._own_socket):
                path.unlink(missing_ok=True)

    def _begin(self) -> bool:
        """Start HAProxy, or leave the predecessor's in charge; return whether one works."""
        predecessor = take_over(self._config.admin_socket) or take_over(self._deputy_socket)
        if predecessor is not None:
            self._sockets = {one.getsockname()[1]: one for one in predecessor.sockets}
            if not self._replaced and not self._config.has_routes:
                _log(f"process {predecessor.pid} keeps serving until there are routes")
                self._haproxy = Haproxy(predecessor.pid, predecessor.haproxy_socket)
                self._relay.haproxy_socket = predecessor.haproxy_socket
                self._relay.open()
                return True
            self._replaced = sorted({*self._replaced, predecessor.pid})
        elif not self._replaced:
            self._sweep()
        for address in self._config.addresses:
            if address.port not in self._sockets:
                self._sockets[address.port] = open_listener(address, self._shares_ports)
        if self._fork_deputy():
            self._take_place()
            return True
        if not self._start(self._replaced).wait_ready(READY_TIMEOUT_S):
            return False
        self._relay.open()
        return True

    def _sweep(self) -> None:
        """Remove the rest of a supervisor and its deputy that were killed at once."""
        sockets = [*self._own_socket.parent.glob("[0-9]*.sock")]
        for path in sockets:
            if pid := process_at(path):
                os.kill(pid, signal.SIGUSR1)
                _log("a HAProxy without a supervisor finishes its requests")
                time.sleep(_BACKOFF_S)  # for it to leave its ports
        for path in (*sockets, *self._amended.parent.glob("haproxy-[0-9]*.cfg")):
            path.unlink(missing_ok=True)

    def _fork_deputy(self) -> bool:
        """Return False at once, and, in another process, True once this one has been killed."""
        supervisor = os.pidfd_open(os.getpid())
        # The deputy takes no signals before it has taken over.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self._deputy = os.fork()
        if not self._deputy:
            return ended(supervisor, None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        os.close(supervisor)
        return False

    def _end_deputy(self) -> None:
        pid, self._deputy = self._deputy, 0
        if pid:
            os.kill(pid, signal.SIGKILL)  # not waited for, so no other process has its id
            os.waitpid(pid, 0)

    def _take_place(self) -> None:
        """Replace the supervisor, which was killed."""
        until_s = time.monotonic() + MAX_SILENT_CHECKS
        while (pid := process_at(self._own_socket)) is None and time.monotonic() < until_s:
            time.sleep(_BACKOFF_S)  # it may just have been started
        if pid is not None:
            self._haproxy, self._owns_haproxy = Haproxy(pid, self._own_socket), True
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        if not self._relay.in_charge or not self._config.has_routes:
            self._stop(signal.SIGTERM)  # there is a successor, or nothing to lose
        elif self._config.draining:
            self._stop(signal.SIGUSR1)
        else:
            _log(f"process {os.getpid()} takes the place of its supervisor, which was killed")
            # Ray's actor cannot go on with a process that it has not started. Ray replaces it if
            # it finds nothing at its own path.
            self._relay.move(self._deputy_socket)

    def _start(self, replaced: list[int]) -> Haproxy:
        listeners = {port: one.fileno() for port, one in self._sockets.items()}
        unavailable = self._config_path.with_name("503.http")
        unavailable.write_bytes(ray_config.UNAVAILABLE)
        self._amended.write_text(
            ray_config.amend(
                self._config,
                self._own_socket,
                listeners,
                unavailable,
                max_clients(),
                held_ms(),
                {port for port in self._config.local_ports if replica_sockets.is_served(port)},
            )
        )
        command = [self._binary, "-db", "-f", str(self._amended)]
        if not self._shares_ports:
            command.append("-dR")
        if replaced:
            command += ["-sf", *map(str, replaced)]
        child = subprocess.Popen(command, pass_fds=list(listeners.values()))
        one = Haproxy(child.pid, self._own_socket, child)
        self._haproxy, self._owns_haproxy = one, True
        self._relay.haproxy_socket = self._own_socket
        if self._stopping:
            one.signal(signal.SIGTERM)
        return one

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
                if not self._start_again():
                    return status or 1
                started_s = time.monotonic()
            if self._relay.fileno() in ready:
                self._relay.answer_next()
            if time.monotonic() >= checked_s + CHECK_EVERY_S:
                checked_s = time.monotonic()
                self._check()

    def _start_again(self) -> bool:
        """Start HAProxy until it works; return False if it does not, or is no longer wanted."""
        self._silent_checks = 0
        for attempt in range(MAX_FAILED_STARTS):
            if self._start([]).wait_ready(READY_TIMEOUT_S):
                return True
            self._end_haproxy()
            if self._stopping:
                break
            time.sleep(_BACKOFF_S * attempt)
        return False

    def _check(self) -> None:
        """Judge the servers; kill a HAProxy that hangs, and stop one that nobody needs."""
        haproxy = self._haproxy
        if haproxy is None or self._stopping:
            return
        try:
            table = ask(haproxy.admin_socket, _SERVERS).decode()
            servers = [one for one in parse_servers(table) if one.name != REFUSALS]
            self._silent_checks = 0
            for command in self._server_checks.look(servers, time.monotonic()):
                _log(command)
                ask(haproxy.admin_socket, command.encode())
        except AdminError:
            self._silent_checks += 1
            # One that waits for a CPU answers when it has one, and one that spins ends itself.
            hangs = self._silent_checks >= MAX_SILENT_CHECKS and not haproxy.wants_cpu
            if hangs and self._owns_haproxy:
                _log("HAProxy does not respond and is killed")
                haproxy.signal(signal.SIGKILL)
            return
        except (KeyError, ValueError, AttributeError, TypeError) as error:
            _log(f"HAProxy's statistics are not understood: {error!r}")
            return
        if os.getppid() == self._parent:
            self._last_useful_s = time.monotonic()
        elif self._raylet is not None and ended(self._raylet):
            _log("Ray has ended: HAProxy stops")
            self._stop(signal.SIGTERM)
        elif any(server.up for server in servers):
            self._last_useful_s = time.monotonic()
        elif time.monotonic() > self._last_useful_s + ORPHAN_TIMEOUT_S:
            _log("the actor that managed it and all replicas are gone: HAProxy stops")
            self._stop(signal.SIGTERM)

    def _hand_over(self, client: socket.socket) -> None:
        hand_over(client, self._relay.haproxy_socket, self._sockets.values())

    def _stop(self, number: int, _frame: object = None) -> None:
        """Pass a signal on to HAProxy: ``SIGUSR1`` lets it finish its requests, others end it."""
        self._stopping = True
        self._end_deputy()  # HAProxy ends by itself now
        for one in self._sockets.values():
            one.close()
        if self._haproxy is not None:
            self._haproxy.signal(number)

    def _end_haproxy(self) -> int:
        """Return the exit status of HAProxy; kill it first if it started but does not respond."""
        haproxy, self._haproxy = self._haproxy, None
        return haproxy.end(READY_TIMEOUT_S) if haproxy is not None else 0


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
