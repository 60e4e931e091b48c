"""Models in a folder, and a manager in a process, for the store's benchmarks."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import safetensors.torch
import torch
from torch import nn

from deployments.modelstore.client import ask
from deployments.modelstore.errors import StoreError, UnavailableError
from deployments.modelstore.files import publishing
from deployments.modelstore.names import ModelName

MB = 1_000_000


def publish(root: Path, name: str, network: nn.Module) -> Path:
    """Write a network's weights to the remote; return the file."""
    model = ModelName.parse(name)
    with TemporaryDirectory() as folder:
        path = Path(folder, "model.safetensors")
        safetensors.torch.save_file(network.state_dict(), path)
        publishing.publish({model: [path]}, root)
    return root / model.path / path.name


@contextmanager
def manager(folder: Path, host_bytes: int) -> Iterator[None]:
    """Run a manager in a process of its own, whose socket this process uses."""
    socket_path = folder / "run" / "store.sock"
    arguments = ["--remote", (folder / "remote").as_uri(), "--disk", str(folder / "disk")]
    arguments += ["--host-bytes", str(host_bytes)]
    said = folder / "manager.log"
    with said.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "sojourn.cli", "store", "serve", *arguments],
            env=os.environ | {"SOJOURN_STORE": str(socket_path)},
            stderr=log,
        )
    os.environ["SOJOURN_STORE"] = str(socket_path)
    try:
        for _ in range(600):
            try:
                ask("stats")
                break
            except UnavailableError:
                if process.poll() is not None:
                    raise StoreError(f"the manager ended: {said.read_text().strip()}") from None
                time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()


def timed(work: Callable[[], Any]) -> float:
    """Return the seconds that a call takes."""
    begin_s = time.perf_counter()
    work()
    return time.perf_counter() - begin_s


def read_all(state: dict[str, torch.Tensor]) -> None:
    """Read every weight once."""
    for tensor in state.values():
        tensor.sum()


def wait_until_idle() -> None:
    """Wait until the manager has noticed that no model is held any more."""
    while ask("stats")["leases"]:
        time.sleep(0.002)
