"""A local run: Ray with Serve in HAProxy mode on this machine, for as long as a context lasts.

Ray runs in a child process (`deployments.local.cluster`) with a session of its own. So a Ctrl-C
reaches this process only, no signal meets a handler of Ray's, and whatever has become of Ray, the
end of the context ends every process.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Set
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from deployments.errors import StartError
from deployments.local.descendants import adopted_orphans, descendants, end_descendants
from deployments.local.environment import environment_of
from deployments.local.machine import (
    ReservedPorts,
    address_to_ask,
    check_machine,
    check_room,
    url_of,
)
from deployments.local.run import LocalRun

#: How long Ray may take to finish requests and to stop, before its processes are killed.
STOP_TIMEOUT_S = 45.0
_CLOSE_TIMEOUT_S = 0.3
#: The module that the child process runs.
CLUSTER = "deployments.local.cluster"
#: How Ray begins each line of a replica's output.
_REPLICA = re.compile(r"^\(ServeReplica:(?P<replica>\S+) pid=(?P<pid>\d+)\) ?(?P<text>.*)$")
#: How Serve begins a line of its log: level, time, deployment, replica, and the request's id.
_LOG_LINE = re.compile(r"^(?P<level>[A-Z]+) \d{4}-\d\d-\d\d [\d:,]+ \S+ \S+ (?:\S+ )?-- ")
_NOT_SHOWN = ("DEBUG", "INFO")
#: Lines of Ray and Python about a crash besides its stack: the same again, and all modules.
_CRASH = re.compile(r"\[.* logging\.cc:\d+: |Extension modules: ")
#: Replicas of a node take the first port that is free, and log an error for each that is not.
_PORT_IN_USE = re.compile(r"Failed to start \S+ server on port \d+: .*Retrying")


@dataclass(frozen=True)
class LocalService:
    """A running local run.

    `wait` returns when Ray ends of its own accord, and reports deployments that fail; it raises
    `StartError`. The dashboard's URL is also the address for ``sojourn deploy -a``.
    """

    urls: tuple[str, ...]
    dashboard: str
    metrics_url: str
    wait: Callable[[], None]


@contextmanager
def local_service(run: LocalRun, report: Callable[[str], None]) -> Iterator[LocalService]:
    """Serve `run` on this machine while the context lasts. Leave no process behind.

    An exception that a signal handler raises ends the context. One more, raised while Ray stops,
    has its processes killed at once. `report` is called with one line of text at each step, and,
    from another thread, with each line that a replica prints.

    Raises
    ------
    StartError
        The port is in use, there is too little memory, or the model does not start.
    """
    check_room(run.num_cpus, run.num_gpus)
    check_machine(run.http_host, run.http_port)
    before = descendants()
    with ExitStack() as stack:
        ports = stack.enter_context(closing(ReservedPorts()))
        ports.take(run.http_host, run.http_port)
        # Not below $TMPDIR, to keep it short: the path of a Unix socket is limited to 107 bytes.
        directory = Path(tempfile.mkdtemp(prefix="sojourn-", dir="/tmp"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        stack.enter_context(adopted_orphans())
        cluster = _Cluster(environment_of(run, directory, ports), report)
        stack.callback(cluster.close)
        stack.callback(_end_all, before, report)
        stack.callback(cluster.stop)
        yield cluster.start(run)


class _Cluster:
    """The child process that runs Ray."""

    def __init__(self, environment: dict[str, str], report: Callable[[str], None]) -> None:
        self._environment = environment
        self._report = report
        self._last_lines: deque[str] = deque(maxlen=20)
        self._process: subprocess.Popen[str] | None = None
        self._ready = False
        self._reader = threading.Thread(target=self._read_errors, daemon=True)

    def start(self, run: LocalRun) -> LocalService:
        """Start the process, and wait until all applications answer, or raise a `StartError`."""
        process = self._process = subprocess.Popen(
            [sys.executable, "-m", CLUSTER],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # So that Ctrl-C reaches this process only.
            start_new_session=True,
        )
        self._reader.start()
        assert process.stdin is not None
        assert process.stdout is not None
        request = {
            "document": run.document,
            "applications": [
                {name: getattr(one, name) for name in ("application", "model", "route_prefix")}
                for one in run.applications
            ],
            "address": address_to_ask(run.http_host),
            "port": run.http_port,
        }
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(request, default=str) + "\n")
            process.stdin.flush()
        for line in process.stdout:
            event = json.loads(line)
            if "error" in event:
                raise StartError(event["error"])
            if "step" in event:
                self._report(event["step"])
            else:
                self._ready = True
                url = url_of(run.http_host, run.http_port)
                return LocalService(
                    tuple(url + application.route_prefix for application in run.applications),
                    event["dashboard"],
                    event["metrics_url"],
                    self.wait,
                )
        raise StartError(f"Ray ended while it started{self._last_words()}")

    def wait(self) -> None:
        """Report the steps of the process until it ends; then raise a `StartError`."""
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._report(json.loads(line)["step"])
        self._process.wait()
        raise StartError(f"Ray ended{self._last_words()}")

    def stop(self) -> None:
        """Wait until Ray has finished its requests; the caller kills the remaining processes."""
        self._report("stopping")
        if self._process is None or not self._ready:
            return  # nothing has been accepted yet
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._report(f"Ray did not stop within {STOP_TIMEOUT_S:g} s; its processes are killed")

    def close(self) -> None:
        """Forget the process, which has ended."""
        process = self._process
        if process is None:
            return
        with suppress(subprocess.TimeoutExpired):
            process.wait(_CLOSE_TIMEOUT_S)
        self._reader.join(_CLOSE_TIMEOUT_S)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def _read_errors(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        # Nobody else closes this pipe: a reader that is late would fail.
        with self._process.stderr as lines:
            for line in lines:
                text = shown_line(line)
                if text is not None:
                    self._report(text)
                else:
                    self._last_lines.append(line.strip())

    def _last_words(self) -> str:
        self._reader.join(_CLOSE_TIMEOUT_S)
        lines = [line for line in self._last_lines if line]
        return f": {lines[-1]}" if lines else ""


def _end_all(but: Set[psutil.Process], report: Callable[[str], None]) -> None:
    left = end_descendants(but)
    if left:
        numbers = ", ".join(str(process.pid) for process in left)
        report(f"processes that could not be ended: {numbers}")


def shown_line(line: str) -> str | None:
    """Return what a user is shown of a line of Ray's output; None for nothing.

    That is what a replica prints and logs, but for its routine, empty lines and progress bars.
    """
    found = _REPLICA.match(line.rstrip())
    if found is None or not found["text"] or _CRASH.match(found["text"]):
        return None
    text = found["text"]
    logged = _LOG_LINE.match(text)
    if logged is not None:
        if logged["level"] in _NOT_SHOWN:
            return None
        text = text[logged.end() :]
        if _PORT_IN_USE.match(text):
            return None
    return f"[replica {found['pid']}] {text}"
