"""The store's tier of GPU memory, for `benchmarks.gpu`: attaching by size, memory, and kills."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.store_models import MB, manager, publish, timed, wait_until_idle
from deployments.modelstore.client import ask
from deployments.modelstore.device.cuda import CudaClient
from deployments.modelstore.device.driver import CUDA, ClientDriver
from deployments.modelstore.device.tensors import attach_to_device
from deployments.modelstore.errors import StoreError
from deployments.modelstore.tensors import load_state_dict

#: A second process: it has the device ready before it attaches, and says how long that took.
_SECOND_PROCESS = """
import sys, time, torch
from deployments.modelstore.device.tensors import attach_to_device
from deployments.modelstore.device.cuda import CudaClient
client = CudaClient(0)

def checksum(state):
    # Of whole numbers, so that it is exact, and takes no memory of its own.
    return sum(int(tensor.view(torch.int32).sum()) for tensor in state.values())

checksum({"warm": torch.zeros(4, device=client.torch_device)})
print("ready", flush=True)
for line in sys.stdin:
    begin_s = time.perf_counter()
    state, source = attach_to_device(line.strip(), client)
    print(1e3 * (time.perf_counter() - begin_s), flush=True)
    print(checksum(state), flush=True)
"""


def used_bytes() -> int:
    """Return how much of the GPU's memory all processes use, by NVML."""
    import pynvml

    pynvml.nvmlInit()
    # The first GPU that this process sees, which need not be the machine's first.
    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())).used)


def gpu_tier(sizes_mb: tuple[int, ...]) -> dict[str, Any]:
    """Measure the device tier, and what kills do to it.

    Returns
    -------
    dict
        ``fault``: why nothing could be shared, or null. ``outlives_holder``: whether memory stays
        when its holder dies. ``by_bytes``, for each size: ``copy_gb_per_s`` from host memory to the
        device; ``attach_ms`` and ``second_process_attach_ms`` with the model on the device;
        ``private_copy_ms``, a load that does not share; ``second_process_bytes`` of the GPU that a
        second process took for the model. ``client_killed`` and ``holder_killed``.
    """
    client = CudaClient(0)
    found: dict[str, Any] = {"fault": None, "by_bytes": {}}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        paths = {f"g{mb}": publish(folder / "remote", f"g{mb}", 64, mb * MB) for mb in sizes_mb}
        room = str(sum(sizes_mb) * MB + 64 * len(sizes_mb) * MB)
        options = ["--device-bytes", room, "--device-driver", CUDA]
        try:
            # Through the disk tier, the largest would be on the disk twice.
            with manager(folder, int(room), *options, disk_bytes=0):
                for name, path in paths.items():
                    size = str(path.stat().st_size)
                    found["by_bytes"][size] = _measure(name, client)
                found["outlives_holder"] = ask("stats")["device"]["outlives_holder"]
                found |= _kills([*paths][:2], client)
        except StoreError as error:
            found["fault"] = str(error)
    return found


def _measure(name: str, client: ClientDriver) -> dict[str, Any]:
    load_state_dict(name)  # into host memory
    wait_until_idle()
    before_bytes, before_s = _copied()
    first_s = timed(lambda: attach_to_device(name, client))
    copied_bytes, copied_s = _copied()
    state, source = attach_to_device(name, client)
    kept = [state]  # so that no time of giving a model back is counted
    attach_s = min(timed(lambda: kept.append(attach_to_device(name, client)[0])) for _ in range(5))
    with _second_process() as process:
        before = used_bytes()
        second_ms, _ = _ask(process, name)
        after = used_bytes()
    begin_s = time.perf_counter()
    private = load_state_dict(name, "cuda:0", share=False)
    torch.cuda.synchronize()
    private_s = time.perf_counter() - begin_s
    del private
    torch.cuda.empty_cache()
    return {
        "source": source,
        "tensors": len(state),
        "first_ms": 1e3 * first_s,
        "copy_gb_per_s": 1e-9 * (copied_bytes - before_bytes) / (copied_s - before_s),
        "attach_ms": 1e3 * attach_s,
        "second_process_attach_ms": second_ms,
        "private_copy_ms": 1e3 * private_s,
        "second_process_bytes": after - before,
    }


def _kills(names: list[str], client: ClientDriver) -> dict[str, Any]:
    name = names[0]
    state, _ = attach_to_device(name, client)
    expected = _sum(state)
    with _second_process() as process:
        _ask(process, name)
        begin_s = time.perf_counter()
    del state
    wait_until_idle()
    client_killed = {"leases_given_back_ms": 1e3 * (time.perf_counter() - begin_s)}
    held, _ = attach_to_device(name, client)
    os.kill(ask("stats")["device"]["holder_pid"], signal.SIGKILL)
    time.sleep(0.5)
    # Of handles, as CUDA IPC has them, nobody may read what is held any more.
    outlives_holder = ask("stats")["device"]["outlives_holder"]
    held_right = _sum(held) == expected if outlives_holder else None
    with _second_process() as process:
        _, attached_sum = _ask(process, name)
    again, source = attach_to_device(name, client)
    for other in names[1:]:
        ask("evict", other)
    # The next copy is the one that starts a new holder.
    next_s = [timed(partial(attach_to_device, other, client)) for other in names[1:]]
    return {
        "client_killed": client_killed,
        "holder_killed": {
            "held_right": held_right,
            "attached_right": attached_sum == expected and _sum(again) == expected,
            "attached_from": source,
            "next_load_ms": [1e3 * seconds for seconds in next_s],
            "holder_starts": ask("stats")["device"]["holder_starts"],
        },
    }


@contextmanager
def _second_process() -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", _SECOND_PROCESS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        if process.stdout.readline() != "ready\n":
            raise StoreError("a second process could not use the device")
        yield process
    finally:
        process.kill()
        process.communicate()


def _ask(process: "subprocess.Popen[str]", name: str) -> tuple[float, int]:
    """Have a second process attach; return how many ms that took, and the weights' checksum."""
    assert process.stdin is not None
    assert process.stdout is not None
    print(name, file=process.stdin, flush=True)
    took, total = process.stdout.readline(), process.stdout.readline()
    if not total:
        raise StoreError("a second process could not attach to the model")
    return float(took), int(total)


def _copied() -> tuple[int, float]:
    """Return the bytes that were copied to the device so far, and the seconds that took."""
    rows = [row for row in ask("stats")["copies"] if row["target"] == "device"]
    return sum(row["bytes"] for row in rows), sum(row["seconds"] for row in rows)


def _sum(state: dict[str, torch.Tensor]) -> int:
    return sum(int(tensor.view(torch.int32).sum()) for tensor in state.values())
