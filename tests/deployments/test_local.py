"""The parts of a local run that work without Ray."""

import socket
from pathlib import Path

import pytest

from deployments.config import load_service_config
from deployments.errors import StartError
from deployments.local import last_error, local_service

CONFIG = Path(__file__).parents[2] / "configs/digits.yaml"


def test_a_port_in_use_is_reported_in_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = load_service_config(CONFIG).model_copy(update={"http_port": port})
        with (
            pytest.raises(StartError, match=rf"port {port} of 127.0.0.1 is in use by \w+"),
            local_service(config, lambda line: None),
        ):
            pass


def test_too_little_memory_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.local.NEEDED_MEMORY_BYTES", 1 << 60)
    config = load_service_config(CONFIG).model_copy(update={"http_port": 0})
    with (
        pytest.raises(StartError, match=r"\d+ MiB of memory are free"),
        local_service(config, lambda line: None),
    ):
        pass


def test_last_error_finds_the_line_that_names_the_error() -> None:
    message = (
        "The deployment failed to start 3 times in a row.\n\n"
        "ray::ServeReplica:a:Replica.initialize_and_get_metadata() (pid=1, ip=127.0.0.1)\n"
        '  File "/x/replica.py", line 1, in initialize\n'
        "RuntimeError: Traceback (most recent call last):\n"
        '  File "/x/base.py", line 2, in load_model\n'
        "policy.errors.InvalidInputError: model 'a': must be package.module:Class\n"
    )
    assert last_error([message]) == "model 'a': must be package.module:Class"
    assert last_error(["something else"]) == "something else"
    assert last_error([]) == "Ray gave no reason"
