"""Start and stop the servers of the comparison, one at a time."""

import hashlib
import os
import shutil
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

import psutil
import yaml

from benchmarks.inputs import ROOT
from benchmarks.peers.models import HOSTED, sojourn_document
from benchmarks.peers.protocols import BatchOfObjects, Dialect, Objects, OpenInference, Workload

HOST, PORT = "127.0.0.1", 8200
START_TIMEOUT_S, STOP_TIMEOUT_S = 90.0, 20.0
CACHE_VARIABLE = "SOJOURN_BENCHMARK_CACHE"
REQUIREMENTS = Path(__file__).with_name("requirements")
#: Triton's Python backend brings an interpreter from before 3.11.7 that reads the environment's
#: standard library, which 3.11.7 changed incompatibly. The system's Python may be old enough.
PYTHONS = {"triton": "/usr/bin/python3.11"}


class UnavailableError(Exception):
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
    python = folder / "bin" / "python"
    done = folder / "installed"
    if not done.exists():
        print(f"benchmarks: installing {peer} into {folder}", file=sys.stderr)
        cache.mkdir(parents=True, exist_ok=True)
        wanted = PYTHONS.get(peer, sys.executable)
        base = wanted if Path(wanted).exists() else sys.executable
        _run_python(["-m", "venv", "--clear", str(folder)], base)
        pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        try:
            _run_python([*pip, "--only-binary=:all:", "-r", str(requirements)], str(python))
        except UnavailableError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        done.touch()
    return str(python)


def _run_python(arguments: list[str], python: str) -> None:
    result = subprocess.run([python, *arguments], capture_output=True, text=True, check=False)
    if result.returncode:
        lines = result.stderr.strip().splitlines() or ["no reason given"]
        errors = [line for line in lines if line.startswith("ERROR")]
        raise UnavailableError(f"cannot be installed: {(errors or lines)[-1]}")


@dataclass(frozen=True)
class Server:
    """A server to measure.

    Attributes
    ----------
    name : str
        Its name in reports.
    module : str
        The module that runs it, with the model and the port as arguments.
    dialect : Dialect
        Its JSON format.
    environment : str or None
        Its virtual environment; None for the one of this process.
    options : tuple of str
        Further arguments of the module.
    scalable : bool
        Whether it can be measured with several processes that hold the model.
    """

    name: str
    module: str
    dialect: Dialect
    environment: str | None = None
    options: tuple[str, ...] = ()
    scalable: bool = False

    @property
    def hosts(self) -> tuple[str, ...]:
        """The models it is measured with; the peers' environments lack the sentence packages."""
        return tuple(name for name in HOSTED if name != "minilm" or self.environment is None)


SERVERS = {
    server.name: server
    for server in (
        Server("sojourn", "sojourn.cli", OpenInference(), scalable=True),
        Server("bare_uvicorn", "benchmarks.peers.uvicorn_server", OpenInference()),
        Server("ray_serve", "benchmarks.peers.plain_serve", Objects("/"), options=("5",)),
        Server("ray_serve_tuned", "benchmarks.peers.plain_serve", Objects("/"), options=("256",)),
        Server(
            *("mosec", "benchmarks.peers.mosec_server", Objects("/inference"), "mosec"),
            scalable=True,
        ),
        Server("bentoml", "benchmarks.peers.bentoml_server", BatchOfObjects("/predict"), "bentoml"),
        Server("triton", "benchmarks.peers.triton_server", OpenInference(), "triton"),
    )
}


@dataclass(frozen=True)
class Running:
    """A server that runs.

    Attributes
    ----------
    pid : int
        Its first process; all its others descend from it.
    """

    pid: int


@contextmanager
def serving(server: Server, model: str, workload: Workload, replicas: int = 1) -> Iterator[Running]:
    """Host a model until the context ends, and leave no process behind.

    Parameters
    ----------
    server : Server
    model : str
        A key of `HOSTED`.
    workload : Workload
        Its first request must be answered rightly before the server counts as running.
    replicas : int
        Processes that hold the model, for the servers that are `Server.scalable`.

    Raises
    ------
    UnavailableError
        The server cannot be installed, does not start, or answers wrongly.
    """
    with tempfile.TemporaryDirectory(prefix="sojourn-data-path-") as name:
        folder = Path(name)
        command = _command(server, model, folder, replicas)
        try:
            process = _start(command, workload, folder)
        except UnavailableError:
            # A port that the server picked for itself may have been taken meanwhile: try again.
            process = _start(command, workload, folder)
        try:
            yield Running(process.pid)
        finally:
            _stop(process)


def _start(command: Sequence[str], workload: Workload, folder: Path) -> subprocess.Popen[bytes]:
    log = folder / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=_environment(folder),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_until_ready(process, workload, log)
    except BaseException:
        _stop(process)
        raise
    return process


def _command(server: Server, model: str, folder: Path, replicas: int) -> Sequence[str]:
    if server.name == "sojourn":
        config = folder / "config.yaml"
        config.write_text(yaml.safe_dump(sojourn_document(model, replicas)))
        command = (sys.executable, "-m", server.module, "serve", str(config), "--port", str(PORT))
        return (*command, "--json")
    python = python_of(server.environment) if server.environment else sys.executable
    options = (*server.options, str(replicas)) if server.scalable else server.options
    return (python, "-m", server.module, model, str(PORT), *options)


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    quiet = {"BENTOML_DO_NOT_TRACK": "True", "BENTOML_HOME": str(folder / "bentoml")}
    return kept | quiet | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def _wait_until_ready(process: subprocess.Popen[bytes], workload: Workload, log: Path) -> None:
    request = urllib.request.Request(
        f"http://{HOST}:{PORT}{workload.path}",
        workload.bodies[0],
        {"Content-Type": "application/json"},
    )
    deadline_s = time.monotonic() + START_TIMEOUT_S
    answer = "no answer"
    while time.monotonic() < deadline_s:
        try:
            with urllib.request.urlopen(request, timeout=5) as response:
                body = response.read()
                if workload.is_right(0, body):
                    return
                answer = f"a wrong answer: {body[:200]!r}"
        except urllib.error.HTTPError as error:
            answer = f"HTTP {error.code}: {error.read()[:200]!r}"
        except OSError:
            pass
        if process.poll() is not None:
            raise UnavailableError(f"exited while starting: {_last_line(log)}")
        time.sleep(0.2)
    raise UnavailableError(
        f"{answer} within {START_TIMEOUT_S:g} s; last line of its log: {_last_line(log)}"
    )


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1].strip()[:300] if lines else "the log is empty"


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
