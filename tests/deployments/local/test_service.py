import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from deployments.config.document import load_service_configs
from deployments.errors import StartError
from deployments.haproxy.request_environment import RequestTraits
from deployments.local import service as local
from deployments.local.descendants import descendants
from deployments.local.run import LocalRun, run_of
from deployments.local.service import local_service, shown_line
from tests.support.ports import free_port
from tests.support.waiting import LIMIT_S

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "configs/digits.yaml"


@pytest.fixture
def config(monkeypatch, tmp_path):
    monkeypatch.setattr(local, "CLUSTER", "tests.support.processes.local_cluster")
    monkeypatch.setattr("deployments.local.machine.NEEDED_MEMORY_BYTES", 0)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    return replace(
        run_of(load_service_configs(CONFIG), [RequestTraits(256)]), http_port=free_port()
    )


@pytest.fixture(autouse=True)
def before():
    before = descendants()
    yield before
    assert descendants() <= before, "others may have ended, but none has come"


def test_a_run_reports_its_steps_and_addresses_and_ends_every_process(config, monkeypatch, before):
    monkeypatch.setenv("CLUSTER", "orphan")
    steps: list[str] = []
    with local_service(config, steps.append) as running:
        assert running.urls == (f"http://127.0.0.1:{config.http_port}",)
        assert running.metrics_url == "http://127.0.0.1:2/metrics"
        orphans = [one for one in descendants() - before if one.ppid() == os.getpid()]
        assert len(orphans) == 2, "the run adopts a process that has lost its parent"
    assert steps == ["deploying digits", "stopping"]


def serve(config: LocalRun, report=lambda line: None):
    with local_service(config, report):
        pass


@pytest.mark.parametrize(
    ("does", "message"),
    [
        ("orphan fails", "the model did not start: no weights"),
        ("orphan dies", "Ray ended while it started: out of memory"),
    ],
)
def test_a_run_that_does_not_start_says_why_and_leaves_nothing(config, monkeypatch, does, message):
    monkeypatch.setenv("CLUSTER", does)
    with pytest.raises(StartError, match=message):
        serve(config)


def test_a_run_whose_ray_ends_says_so_and_leaves_nothing(config, monkeypatch):
    monkeypatch.setenv("CLUSTER", "orphan deploys crashes")
    steps: list[str] = []
    with (
        pytest.raises(StartError, match="Ray ended"),
        local_service(config, steps.append) as running,
    ):
        running.wait()
    assert "the deployment of digits failed: no weights" in steps


def test_a_ray_that_does_not_stop_is_killed(config, monkeypatch):
    monkeypatch.setenv("CLUSTER", "orphan hangs")
    monkeypatch.setattr(local, "STOP_TIMEOUT_S", 0.05)
    steps: list[str] = []
    serve(config, steps.append)
    assert steps[-1] == "Ray did not stop within 0.05 s; its processes are killed"


def test_an_interrupt_while_ray_stops_kills_its_processes_even_while_output_is_reported(
    config, monkeypatch
):
    """On a busy machine, the thread that reads it can be far behind."""
    monkeypatch.setenv("CLUSTER", "orphan prints hangs")
    monkeypatch.setattr(local, "_CLOSE_TIMEOUT_S", 0.05)
    failures: list[object] = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    readers, ended = queue.Queue[threading.Thread](), threading.Event()

    def report(line):
        if line == "[replica 7] hello":
            readers.put(threading.current_thread())
            ended.wait()
        elif line == "stopping":
            readers.put(readers.get())
            signal.raise_signal(signal.SIGINT)

    try:
        with pytest.raises(KeyboardInterrupt):
            serve(config, report)
    finally:
        ended.set()
    readers.get().join()
    assert not failures


@pytest.mark.slow
@pytest.mark.parametrize(
    ("does", "number", "signals"),
    [
        ("starts-for-ever", signal.SIGTERM, 1),
        ("orphan", signal.SIGTERM, 1),
        ("orphan hangs", signal.SIGINT, 2),
    ],
)
def test_a_signal_ends_the_command_wherever_it_is(config, monkeypatch, does, number, signals):
    monkeypatch.setenv("CLUSTER", does)
    source = (
        "import sys; from deployments.local import machine, service;"
        "from sojourn.commands import serve;"
        "service.CLUSTER = 'tests.support.processes.local_cluster';"
        "machine.NEEDED_MEMORY_BYTES = 0;"
        "serve.Interrupt.TOGETHER_S = 0.0; serve._summary = lambda *_: {};"
        "serve._print_summary = lambda _: serve.say('ready');"
        "serve.command.main(sys.argv[1:], 'serve', standalone_mode=False)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", source, str(CONFIG), "--port", str(config.http_port)],
        stderr=subprocess.PIPE,
        text=True,
    )
    last = "deploying digits" if does == "starts-for-ever" else "ready"
    assert f"{last}\n" in iter(process.stderr.readline, "")
    started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    assert process.stderr.readline() == "stopping\n"
    for _ in range(signals - 1):
        process.send_signal(number)
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(LIMIT_S) == 0
    _, alive = psutil.wait_procs(started, timeout=LIMIT_S)
    assert not alive


def test_a_port_in_use_and_too_little_memory_are_reported(config, monkeypatch):
    port = config.http_port
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(StartError, match=rf"port {port} of 127.0.0.1 is in use by \w+"),
    ):
        serve(config)
    monkeypatch.setattr("deployments.local.machine.NEEDED_MEMORY_BYTES", 1 << 60)
    with pytest.raises(StartError, match=r"\d+ MiB of memory are free"):
        serve(config)


STAMP = "2026-11-22 04:23:56,360 digits_Replica 1a2b3c"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("(ServeReplica:digits:Replica pid=12) loading\n", "loading"),
        (f"(ServeReplica:digits:Replica pid=12) ERROR {STAMP} -- it failed", "it failed"),
        (f"(ServeReplica:digits:Replica pid=12) WARNING {STAMP} 5d-6e -- odd", "odd"),
        ('(ServeReplica:digits:Replica pid=12)   File "cnn.py", line 3', '  File "cnn.py", line 3'),
        ("(ServeReplica:digits:Replica pid=12) \n", None),  # of a progress bar
        ("(ServeReplica:digits:Replica pid=12) Fatal error", "Fatal error"),
        ("(ServeReplica:digits:Replica pid=12) Extension modules: yaml._yaml, numpy.linalg", None),
        (
            "(ServeReplica:digits:Replica pid=12) [2026-11-27 E 1 2] logging.cc:474: *** SIGSEGV",
            None,
        ),
        ("", None),
        (f"(ServeController pid=12) ERROR {STAMP} -- it failed", None),
        (f"(ServeReplica:digits:Replica pid=12) INFO {STAMP} -- started", None),
        (
            f"(ServeReplica:digits:Replica pid=12) WARNING {STAMP} -- Failed to start HTTP server "
            "on port 30000: [Errno 98] address already in use. Retrying...",
            None,
        ),
    ],
)
def test_what_a_replica_prints_is_shown_without_rays_prefix_and_rays_own_routine_is_not(line, text):
    assert shown_line(line) == (None if text is None else f"[replica 12] {text}")
