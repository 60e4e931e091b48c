"""Model stores for tests: models in a folder, and a manager in a thread or a process."""

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import safetensors.numpy
import torch

from deployments.modelstore.client import ask
from deployments.modelstore.errors import UnavailableError
from deployments.modelstore.manager.manager import Manager
from deployments.modelstore.manager.settings import ManagerSettings
from tests.support.waiting import LIMIT_S

MB = 1_000_000
FILE = "model.safetensors"


def publish(root: Path, name: str, files: dict[str, dict[str, np.ndarray]]) -> Path:
    """Write a model's files and their digests into a folder that serves as a remote."""
    folder = root / "pytorch" / name / "1"
    folder.mkdir(parents=True)
    for file, tensors in files.items():
        safetensors.numpy.save_file(tensors, folder / file)
    sign(folder)
    return folder


def sign(folder: Path) -> None:
    """Write the digests of the files that a model's folder has now."""
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(folder.glob("*.safetensors"))
    ]
    (folder / "SHA256SUMS").write_text("".join(lines))


def weights(seed: int, floats: int = 1000) -> dict[str, np.ndarray]:
    """Return two tensors with random values."""
    random = np.random.default_rng(seed)
    return {
        "weight": random.standard_normal((floats // 10, 10), np.float32),
        "bias": random.standard_normal(10, np.float32),
    }


def publish_models(folder: Path) -> Path:
    """Publish the models m and n into `folder/remote`; return that."""
    for seed, name in enumerate(("m", "n")):
        publish(folder / "remote", name, {FILE: weights(seed, floats=20_000)})
    return folder / "remote"


def right(state: dict[str, torch.Tensor], seed: int = 0) -> bool:
    """Return whether the tensors are those of m, or, with a seed of 1, of n."""
    expected = weights(seed, floats=20_000)
    return all(bool((state[name].numpy() == expected[name]).all()) for name in expected)


def stats(store: Path):
    return ask("stats", socket_path=store)


def wait_until_idle(store: Path) -> None:
    wait_until(lambda: stats(store)["leases"] == 0)


def settings_for(folder: Path, **options) -> ManagerSettings:
    """Return settings with everything inside `folder`; its remote is `folder/remote`."""
    defaults = {
        "remote": (folder / "remote").as_uri(),
        "disk": folder / "disk",
        "host_bytes": 50 * MB,
        "disk_bytes": 100 * MB,
        "socket": folder / "run" / "store.sock",
    }
    return ManagerSettings(**(defaults | options))


@contextmanager
def manager_thread(settings: ManagerSettings):
    """Run a manager in a thread; yield the path of its socket."""
    manager = Manager(settings)
    thread = threading.Thread(target=manager.run)
    thread.start()
    try:
        yield settings.socket
    finally:
        manager.stop()
        thread.join(LIMIT_S)
        assert not thread.is_alive()


class ManagerProcess:
    """A manager in a process of its own, which can be killed."""

    def __init__(self, settings: ManagerSettings, **environment: str):
        self.settings = settings
        self._environment = environment
        self.start()

    def start(self) -> None:
        settings = self.settings
        arguments = ["store", "serve", "--remote", settings.remote, "--disk", str(settings.disk)]
        arguments += ["--host-bytes", str(settings.host_bytes)]
        arguments += ["--disk-bytes", str(settings.disk_bytes), "--socket", str(settings.socket)]
        if settings.device_bytes:
            arguments += ["--device-bytes", str(settings.device_bytes)]
            arguments += ["--device-driver", settings.device_driver]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sojourn.cli", *arguments],
            env=os.environ | self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(lambda: is_up(settings.socket))

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(LIMIT_S)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.kill()


def is_up(socket_path: Path) -> bool:
    try:
        ask("stats", socket_path=socket_path)
    except UnavailableError:
        return False
    return True


def wait_until(condition, timeout_s: float = LIMIT_S):
    """Poll until the condition holds; fail if it does not within the time."""
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        if value := condition():
            return value
        threading.Event().wait(0.005)
    raise AssertionError("the condition did not come true in time")
