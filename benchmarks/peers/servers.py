"""Start and stop the servers of the comparison, one at a time."""

import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import click
import psutil

from benchmarks.inputs import ROOT
from benchmarks.local_service import running_service, service_document
from benchmarks.peers.models import model_section, user_config
from benchmarks.peers.protocols import Dialect, Objects, OpenInference, Workload

HOST, PORT = "127.0.0.1", 8200
START_TIMEOUT_S, STOP_TIMEOUT_S = 90.0, 20.0
CACHE_VARIABLE = "SOJOURN_BENCHMARK_CACHE"
REQUIREMENTS = Path(__file__).with_name("requirements")


class UnavailableError(click.ClickException):
    """A server cannot be measured on this machine; the message says why in one line."""


def python_of(peer: str) -> str:
    """Return the interpreter of a peer's environment, creating the environment if needed.

    Raises
    ------
    UnavailableError
        The environment cannot be installed.
    """
    cache = Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "sojourn-benchmarks")
    requirements = REQUIREMENTS / f"{peer}.txt"
    # Changed pins make a new environment.
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    folder = cache / f"{peer}-{digest}"
    python, done = folder / "bin" / "python", folder / "installed"
    if not done.exists():
        print(f"benchmarks: installing {peer} into {folder}", file=sys.stderr)
        _run_python(sys.executable, "-m", "venv", "--clear", str(folder))
        pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input")
        _run_python(str(python), *pip, "--only-binary=:all:", "-r", str(requirements))
        done.touch()
    return str(python)


def _run_python(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        lines = result.stderr.strip().splitlines() or ["no reason given"]
        raise UnavailableError(f"cannot be installed: {lines[-1]}")


@dataclass(frozen=True)
class Server:
    """A server to measure.

    Attributes
    ----------
    module : str
        The module that runs it, with the model and the port as arguments; empty for Sojourn.
    environment : str or None
        Its virtual environment; None for the one of this process.
    scalable : bool
        Whether it can be measured with several processes that hold the model.
    """

    name: str
    module: str
    dialect: Dialect
    environment: str | None = None
    scalable: bool = False


SERVERS = {
    server.name: server
    for server in (
        Server("sojourn", "", OpenInference(), scalable=True),
        Server("bare_uvicorn", "benchmarks.peers.uvicorn_server", OpenInference()),
        Server("ray_serve", "benchmarks.peers.plain_serve", Objects("/")),
        Server("mosec", "benchmarks.peers.mosec_server", Objects("/inference"), "mosec", True),
    )
}


@contextmanager
def serving(server: Server, model: str, workload: Workload, replicas: int = 1) -> Iterator[None]:
    """Host a model until the context ends, and leave no process behind.

    Parameters
    ----------
    workload : Workload
        Its first request must be answered rightly before the server counts as running.
    replicas : int
        Processes that hold the model, for the servers that are `Server.scalable`.

    Raises
    ------
    UnavailableError
        The server cannot be installed, does not start, or answers wrongly.
    """
    if not server.module:
        document = service_document(model_section(model), user_config(model), PORT, replicas)
        with running_service(document, PORT):
            yield
        return
    python = python_of(server.environment) if server.environment else sys.executable
    command = [python, "-m", server.module, model, str(PORT)]
    if server.scalable:
        command.append(str(replicas))
    with running(command, workload):
        yield


@contextmanager
def running(command: Sequence[str], workload: Workload) -> Iterator[None]:
    """Run a server until the context ends; its first request must be answered rightly."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            fault = _fault_at_start(process, workload)
            if fault is not None:
                log.seek(0)
                last = (log.read().strip().splitlines() or ["it is empty"])[-1]
                raise UnavailableError(f"{fault}; last line of its log: {last[:300]}")
            yield
        finally:
            _stop(process)


def first_request(workload: Workload) -> urllib.request.Request:
    url = f"http://{HOST}:{PORT}{workload.path}"
    return urllib.request.Request(url, workload.bodies[0], {"Content-Type": "application/json"})


def _fault_at_start(process: subprocess.Popen[bytes], workload: Workload) -> str | None:
    """Wait until the first request is answered rightly; return why it is not."""
    request = first_request(workload)
    deadline_s = time.monotonic() + START_TIMEOUT_S
    answer = "no answer"
    while time.monotonic() < deadline_s:
        try:
            with urllib.request.urlopen(request, timeout=5) as response:
                body = response.read()
                if workload.is_right(0, body):
                    return None
                answer = f"a wrong answer: {body[:200]!r}"
        except urllib.error.HTTPError as error:
            answer = f"HTTP {error.code}: {error.read()[:200]!r}"
        except OSError:
            pass
        if process.poll() is not None:
            return "exited while starting"
        time.sleep(0.2)
    return f"{answer} within {START_TIMEOUT_S:g} s"


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a server and all processes it started; kill those that do not stop in time."""
    started = {psutil.Process(process.pid)} if process.poll() is None else set()
    for one in list(started):
        started.update(one.children(recursive=True))
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    _, alive = psutil.wait_procs(started, timeout=STOP_TIMEOUT_S)
    for one in alive:
        with suppress(psutil.Error):
            one.kill()
    process.wait()
