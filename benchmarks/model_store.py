"""Measure the model store on the CPU: attaching, sharing, and cold loads.

    python -m benchmarks.model_store [--quick] [--json]

The models have the bytes and numbers of tensors of TrIMS's tables 3 and 4 (Dakkak et al., 2018) and
random values. All ratios compare two measurements of the same run:

- ``warm_attach_ms``: time of `load_state_dict` for a model in memory, by bytes; the median.
- ``second_process_extra_fraction``: memory that a second process has for itself after it has read
  every weight, as a share of the model.
- ``opens_per_s``: opens and closes of a small model by one process.
- ``cold_bandwidth_fraction``: bandwidth of an open whose model is on disk, as a share of the best
  O_DIRECT `preadv` of the same file into memory that exists already.

Models are scaled down (``scale``) so that the run needs about 1 GB of disk.
"""

import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import torch

from benchmarks.arguments import json_option, print_result, quick_option
from benchmarks.store_models import (
    LARGE,
    MB,
    SMALL,
    manager,
    publish,
    read_all,
    timed,
    wait_until_idle,
)
from deployments.modelstore.client import ask, open_model
from deployments.modelstore.tensors import load_state_dict
from sojourn.output import say

#: Size of the reads that the disk's best bandwidth is measured with.
READ_BYTES = 8 << 20

_SECOND_PROCESS = """
import sys
from deployments.modelstore.tensors import load_state_dict
def private():
    with open("/proc/self/smaps_rollup") as file:
        rows = (line.split() for line in file)
        return sum(int(row[1]) * 1024 for row in rows if row[0].startswith("Private_"))
warm = load_state_dict(sys.argv[2])
for tensor in warm.values(): tensor.sum()
before = private()
state = load_state_dict(sys.argv[1])
for tensor in state.values(): tensor.sum()
print(private() - before)
"""


def warm_attach_ms(name: str, repeats: int) -> float:
    """Return the median time to attach a model that is in memory."""
    load_state_dict(name)
    return 1e3 * statistics.median(timed(lambda: load_state_dict(name)) for _ in range(repeats))


def second_process_extra_fraction(name: str, small: str, size_bytes: int) -> float:
    state = load_state_dict(name)
    read_all(state)
    arguments = [sys.executable, "-c", _SECOND_PROCESS, name, small]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    return float(done.stdout) / size_bytes


def best_preadv_bytes_per_s(path: Path) -> float:
    """Return the best bandwidth of O_DIRECT reads into memory that exists already."""
    return max(preadv_bytes_per_s(path, threads) for threads in (1, 2, 4))


def preadv_bytes_per_s(path: Path, threads: int) -> float:
    """Return the bandwidth of so many threads that read every n-th block of a file."""
    size_bytes = path.stat().st_size // READ_BYTES * READ_BYTES
    buffers = [mmap.mmap(-1, READ_BYTES) for _ in range(threads)]
    for buffer in buffers:
        buffer.write(bytes(READ_BYTES))
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)

    def read(first: int) -> None:
        for offset in range(first * READ_BYTES, size_bytes, threads * READ_BYTES):
            os.preadv(descriptor, [buffers[first]], offset)

    def read_in_threads() -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(read, range(threads)))

    try:
        return size_bytes / timed(read_in_threads)
    finally:
        os.close(descriptor)


def cold_bandwidth_fraction(name: str, path: Path, repeats: int) -> float:
    """Return the best bandwidth of cold opens over the best of plain reads."""
    ours, limits = [], []
    for _ in range(repeats):
        wait_until_idle()
        ask("evict", name)
        limits.append(best_preadv_bytes_per_s(path))
        ours.append(path.stat().st_size / timed(lambda: open_and_close(name)))
    return max(ours) / max(limits)


def open_and_close(name: str) -> None:
    """Open a model, and give it back."""
    hold, files = open_model(name)
    for file in files:
        os.close(file.descriptor)
    hold.close()


def opens_per_s(name: str, seconds: float) -> float:
    """Return the opens and closes per second of one process."""
    end_s, opens = time.perf_counter() + seconds, 0
    while time.perf_counter() < end_s:
        open_and_close(name)
        opens += 1
    return opens / seconds


@click.command()
@quick_option("Use smaller models and fewer repeats.")
@json_option
def main(quick: bool, as_json: bool) -> None:
    """Measure the model store on the CPU."""
    torch.set_num_threads(1)
    scale = 0.008 if quick else 0.02
    repeats = 3 if quick else 5
    results: dict[str, Any] = {"scale": scale}
    tables = {"small": SMALL, "large": LARGE}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        say("Writing the models …")
        sizes = {
            f"{kind}{number}": (tensors, round(mb * MB * scale))
            for kind, table in tables.items()
            for number, (tensors, mb) in enumerate(table)
        }
        paths = {name: publish(folder / "remote", name, *size) for name, size in sizes.items()}
        with manager(folder, host_bytes=4000 * MB):
            say("Attaching …")
            results["warm_attach_ms"] = {
                str(path.stat().st_size): warm_attach_ms(name, 4 * repeats)
                for name, path in paths.items()
            }
            largest, tiny = f"large{len(LARGE) - 1}", "small0"
            results["second_process_extra_fraction"] = second_process_extra_fraction(
                largest, tiny, paths[largest].stat().st_size
            )
            results["opens_per_s"] = opens_per_s(tiny, 2.0)
            say("Loading cold …")
            results["cold_bandwidth_fraction"] = cold_bandwidth_fraction(
                largest, paths[largest], repeats
            )
    print_result(results, as_json)


if __name__ == "__main__":
    main()
