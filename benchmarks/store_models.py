"""Models of TrIMS's sizes in a folder, and a manager in a process, for the store's benchmarks."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import nn

from deployments.modelstore.client import ask
from deployments.modelstore.errors import StoreError, UnavailableError

MB = 1_000_000
#: Four of the networks of TrIMS's table 3, the least and the largest among them: tensors and MB.
SMALL = ((52, 4.8), (268, 98), (1346, 391), (38, 549))
#: AlexNet and VGG16 with larger inputs, the least and the largest of its table 4.
LARGE = ((16, 770), (32, 6408))


def network(tensors: int, size_bytes: int) -> nn.Sequential:
    """Return linear layers with about this many tensors and bytes; a row reads each weight once."""
    layers = max(1, tensors // 2)
    width = max(8, round((size_bytes / 4 / layers) ** 0.5))
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))


def publish(root: Path, name: str, tensors: int, size_bytes: int) -> Path:
    """Write a network with random weights to the remote; return its file."""
    folder = root / "pytorch" / name / "1"
    folder.mkdir(parents=True)
    with torch.device("meta"):
        shapes = {
            key: value.shape for key, value in network(tensors, size_bytes).state_dict().items()
        }
    random = np.random.default_rng(len(name) + tensors + size_bytes)
    # Random numbers take longer than all that is measured with them, so layers share them, shifted.
    noise = {
        shape: torch.from_numpy(random.standard_normal(tuple(shape), np.float32) * 0.01)
        for shape in set(shapes.values())
    }
    state = {
        key: noise[shape] + 1e-4 * number for number, (key, shape) in enumerate(shapes.items())
    }
    path = folder / "model.safetensors"
    safetensors.torch.save_file(state, path)
    subprocess.run("sha256sum *.safetensors > SHA256SUMS", shell=True, cwd=folder, check=True)
    return path


@contextmanager
def manager(
    folder: Path, host_bytes: int, *options: str, disk_bytes: int = 4000 * MB
) -> Iterator[None]:
    """Run a manager in a process of its own, whose socket this process uses."""
    socket_path = folder / "run" / "store.sock"
    arguments = ["--remote", (folder / "remote").as_uri(), "--disk", str(folder / "disk")]
    arguments += ["--host-bytes", str(host_bytes), "--disk-bytes", str(disk_bytes)]
    said = folder / "manager.log"
    with said.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "sojourn.cli", "store", "serve", *arguments, *options],
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
