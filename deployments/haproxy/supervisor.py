"""The program that Ray runs in HAProxy's place: it runs HAProxy and starts it again if it dies.

    sojourn-haproxy -db -f CONFIG [-dR] [-sf PID…] [-x SOCKET]

Ray checks its HAProxy every ten seconds, restarts it after three failures, and then has to send it
the routes again: 22 s in which the service's port is closed. The supervisor sees the end of the
process at once. It holds the listening sockets itself, so clients that connect meanwhile wait
for some tens of milliseconds; only what was in HAProxy's hands is lost.

To Ray it looks like HAProxy: it takes the same arguments (`RAY_SERVE_HAPROXY_BINARY_PATH` names
it), answers at the same admin socket, and stops on the same signals. A reload starts a new
supervisor, which takes the sockets over from its predecessor. So does one that Ray starts because
the actor that managed the old one has died; until Ray has sent the routes, it leaves the
predecessor's HAProxy in charge. If the supervisor itself is killed, its deputy takes its place
(`deployments.haproxy.deputy`).

Each reload starts a new Python process, so this package imports nothing but the standard library.
"""

import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress

from deployments.haproxy import ray_config, replica_sockets
from deployments.haproxy.admin_relay import AdminError, AdminRelay, ask, process_id
from deployments.haproxy.deputy import SIGNALS, Deputy
from deployments.haproxy.fallback import held_ms
from deployments.haproxy.listeners import HAND_OVER, hand_over, open_listener, take_over
from deployments.haproxy.open_files import max_connections, open_files_limit
from deployments.haproxy.processes import ended, open_parent_of, wants_cpu
from deployments.haproxy.ray_config import REFUSALS, Address, UnknownConfigError
from deployments.haproxy.rays_command import find_haproxy, parse_arguments
from deployments.haproxy.server_checks import ServerChecks, StatisticsError, parse_servers
from deployments.haproxy.settings import ALWAYS_SERVED, HTTP_HOST
from deployments.haproxy.worker import Child, Worker

READY_TIMEOUT_S = 30.0
#: Where a deputy that has taken over answers its successor, beside Ray's admin socket.
DEPUTY_SOCKET = "deputy.sock"
#: How often HAProxy is asked about its servers, and after how many failures it is killed.
CHECK_EVERY_S = 0.25
MAX_SILENT_CHECKS = 3
#: With neither a manager nor a replica, HAProxy only holds its port: it stops after so long.
ORPHAN_TIMEOUT_S = 30.0
#: Starts in a row that may fail before Ray is left to decide.
MAX_FAILED_STARTS = 10
_BACKOFF_S = 0.1
_SERVERS = b"show stat -1 4 -1"


class Supervisor:
    """Run one HAProxy until a successor replaces it or Ray ends it.

    Parameters
    ----------
    binary : str
        HAProxy.
    arguments : list of str
        Ray's arguments.

    Raises
    ------
    UnknownConfigError
        The arguments or the configuration are not what this version of Ray writes.
    OSError
        The configuration cannot be read, or an address cannot be listened on.
    """

    def __init__(self, binary: str, arguments: list[str]) -> None:
        self._config_path, self._shares_ports, replaced = parse_arguments(arguments)
        self._config = ray_config.parse(self._config_path.read_text(), os.environ.get(HTTP_HOST))
        self._binary = binary
        self._replaced = replaced
        self._parent = os.getppid()
        self._raylet = open_parent_of(self._parent)
        self._stopping = False
        folder = self._config.admin_socket.parent
        # Short names: the path of a Unix socket has 107 bytes at most.
        self._worker_socket = folder / f"{os.getpid()}.sock"
        self._amended = self._config_path.with_name(f"haproxy-{os.getpid()}.cfg")
        self._unavailable = self._config_path.with_name("503.http")
        self._held_map = self._unavailable.with_name(ray_config.HELD_MAP)
        self._limited: dict[str, int] = {}
        self._sockets: dict[Address, socket.socket] = {}
        self._worker: Worker | None = None
        self._relay = AdminRelay(
            self._config.admin_socket,
            lambda: self._worker.admin_socket if self._worker else self._worker_socket,
            {HAND_OVER: self._hand_over},
        )
        self._deputy = Deputy()
        self._deputy_socket = self._config.admin_socket.with_name(DEPUTY_SOCKET)
        self._owns_haproxy = False
        self._silent_checks = 0
        self._server_checks = ServerChecks()
        self._always_served = os.environ.get(ALWAYS_SERVED, "").split(",")
        self._last_useful_s = time.monotonic()

    def run(self) -> int:
        """Serve until stopped; return the exit status."""
        # If the actor that started us dies, the raylet kills its process group; we serve on.
        os.setpgid(0, 0)
        self._handle_signals()
        try:
            if not self._begin():
                return self._status_of_worker() or 1
            return self._supervise()
        finally:
            self._deputy.end()
            self._relay.close()
            for path in (self._amended, self._worker_socket):
                path.unlink(missing_ok=True)

    def _handle_signals(self) -> None:
        for number in SIGNALS:
            signal.signal(number, self._stop)

    def _begin(self) -> bool:
        """Start HAProxy, or leave the predecessor's in charge; return whether one works."""
        self._relay.listen()
        predecessor = take_over(self._config.admin_socket) or take_over(self._deputy_socket)
        if predecessor is not None:
            self._sockets.update(predecessor.sockets)
            if not self._replaced and not self._config.has_routes:
                _log(f"process {predecessor.pid} keeps serving until there are routes")
                self._worker = Worker(predecessor.pid, predecessor.worker_socket)
                self._relay.open()
                return True
            self._replaced = sorted({*self._replaced, predecessor.pid})
        elif not self._replaced:
            self._sweep()
        for address in self._config.addresses:
            if address not in self._sockets:
                self._sockets[address] = open_listener(address, self._shares_ports)
        if self._have_deputy():
            return True
        worker = self._start([str(pid) for pid in self._replaced])
        if not worker.wait_ready(READY_TIMEOUT_S):
            return False
        self._relay.open()
        return True

    def _have_deputy(self) -> bool:
        """Fork a deputy; return False here, and True there if it has to take over."""
        haproxy = self._deputy.fork(self._worker.pid if self._worker else 0)
        if haproxy is None:
            return False
        self._handle_signals()
        self._owns_haproxy = True
        with suppress(ProcessLookupError):
            self._worker = Worker(haproxy, self._worker_socket) if haproxy else None
        if not self._relay.in_charge or not self._config.has_routes:
            self._stop(signal.SIGTERM)  # there is a successor, or nothing to lose
        elif self._config.draining:
            self._stop(signal.SIGUSR1)
        else:
            _log(f"process {os.getpid()} takes the place of its supervisor, which was killed")
            # Ray's actor cannot go on with a process that it has not started. It is replaced if
            # it finds nothing at its own path.
            self._relay.move(self._deputy_socket)
        return True

    def _sweep(self) -> None:
        """Remove what is left where a supervisor and its deputy were killed at once."""
        sockets = [*self._worker_socket.parent.glob("[0-9]*.sock")]
        for path in sockets:
            with suppress(AdminError, ProcessLookupError):
                os.kill(process_id(ask(path, b"show info")), signal.SIGUSR1)
                _log("a HAProxy without a supervisor finishes what it has")
                time.sleep(_BACKOFF_S)  # for it to leave its ports
        for path in (*sockets, *self._amended.parent.glob("haproxy-[0-9]*.cfg")):
            path.unlink(missing_ok=True)

    def _lift_limits(self) -> list[str]:
        """Return the commands for what may be scaled to zero by now."""
        now = held_ms(self._config.admin_socket.parent, self._always_served)
        lifted = self._limited.keys() - now.keys()
        self._limited = {backend: self._limited[backend] for backend in self._limited.keys() & now}
        return [f"add map {self._held_map} {backend} yes" for backend in sorted(lifted)]

    def _start(self, replaced: list[str]) -> Child:
        listeners = {address: one.fileno() for address, one in self._sockets.items()}
        self._unavailable.write_bytes(ray_config.UNAVAILABLE)
        self._held_map.write_bytes(b"")
        self._limited = held_ms(self._config.admin_socket.parent, self._always_served)
        self._amended.write_text(
            ray_config.amend(
                self._config,
                self._worker_socket,
                listeners,
                self._unavailable,
                self._limited,
                max_connections(open_files_limit()),
                {port for port in self._config.local_ports if replica_sockets.is_served(port)},
            )
        )
        command = [self._binary, "-db", "-f", str(self._amended)]
        if not self._shares_ports:
            command.append("-dR")
        if replaced:
            command += ["-sf", *replaced]
        worker = Child(command, self._worker_socket, list(listeners.values()))
        self._worker, self._owns_haproxy = worker, True
        self._deputy.tell(worker.pid)
        if self._stopping:
            worker.signal(signal.SIGTERM)
        return worker

    def _supervise(self) -> int:
        started_s = checked_s = time.monotonic()
        admin = self._relay.fileno()
        while True:
            if self._owns_haproxy and not (self._stopping or self._deputy.alive):
                self._have_deputy()
            worker = self._worker
            poll = select.poll()
            poll.register(admin, select.POLLIN)
            if worker is not None:
                poll.register(worker.fileno(), select.POLLIN)
            ready = {descriptor for descriptor, _ in poll.poll(1e3 * CHECK_EVERY_S)}
            if worker is None or worker.fileno() in ready:
                status = self._status_of_worker()
                if self._stopping:
                    return status
                _log(f"HAProxy ended with status {status} and is started again")
                if time.monotonic() < started_s + 1:
                    time.sleep(_BACKOFF_S)
                if not self._start_again():
                    return status or 1
                started_s = time.monotonic()
            if admin in ready:
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
            self._status_of_worker()
            if self._stopping:
                break
            time.sleep(_BACKOFF_S * attempt)
        return False

    def _check(self) -> None:
        """Look after the servers; kill a HAProxy that hangs, and stop one that nobody needs."""
        worker = self._worker
        assert worker is not None
        if self._stopping:
            return
        try:
            table = ask(worker.admin_socket, _SERVERS).decode()
            servers = [one for one in parse_servers(table) if one.name != REFUSALS]
            self._silent_checks = 0
            commands = self._server_checks.look(servers, time.monotonic())
            for command in commands + self._lift_limits():
                _log(command)
                ask(worker.admin_socket, command.encode())
        except StatisticsError as error:
            _log(str(error))
            return
        except AdminError:
            self._silent_checks += 1
            # One that waits for a CPU answers when it has one, and one that spins ends itself.
            hangs = self._silent_checks >= MAX_SILENT_CHECKS and not wants_cpu(worker.pid)
            if hangs and self._owns_haproxy:
                _log("HAProxy does not respond and is killed")
                worker.signal(signal.SIGKILL)
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
        worker_socket = self._worker.admin_socket if self._worker else self._worker_socket
        hand_over(client, os.getpid(), worker_socket, self._sockets)

    def _stop(self, number: int, _frame: object = None) -> None:
        """Pass a signal on to HAProxy: ``SIGUSR1`` lets it finish what it has, others end it."""
        self._stopping = True
        self._deputy.end()  # HAProxy ends by itself now
        for one in self._sockets.values():
            one.close()
        if self._worker is not None:
            self._worker.signal(number)

    def _status_of_worker(self) -> int:
        worker, self._worker = self._worker, None
        if worker is None:
            return 0
        if not worker.ended():
            # It started but does not respond.
            worker.signal(signal.SIGKILL)
            worker.ended(READY_TIMEOUT_S)
        return worker.close()


def _log(message: str) -> None:
    sys.stderr.write(f"sojourn-haproxy: {message}\n")
    sys.stderr.flush()


def main() -> int:
    """Supervise HAProxy; run it alone where its arguments or configuration are not understood."""
    binary, arguments = find_haproxy(), sys.argv[1:]
    try:
        supervisor = Supervisor(binary, arguments)
    except UnknownConfigError as error:
        if HTTP_HOST in os.environ:
            # Alone, HAProxy would open Ray's pages to the network.
            _log(f"HAProxy does not start: {error}")
            return 1
        _log(f"HAProxy runs unsupervised: {error}")
        os.execv(binary, [binary, *arguments])
    try:
        return supervisor.run()
    except OSError as error:
        _log(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
