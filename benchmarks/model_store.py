"""Measure the model store on the CPU: attaching, sharing, cold loads, and TrIMS's workload.

    python -m benchmarks.model_store [--quick] [--json]

The models have the bytes and numbers of tensors of TrIMS's tables 3 and 4 (Dakkak et al., 2018) and
random values. All ratios compare two measurements of the same run:

- ``warm_attach_ms``: time of `load_state_dict` for a model in memory, by bytes; the median.
  ``warm_attach_processor_ms`` is this process's processor time for it.
- ``second_process_extra_fraction``: memory that a second process has for itself after it has read
  every weight, as a share of the model.
- ``cold_bandwidth_fraction``: bandwidth of an open whose model is on disk, as a share of the best
  O_DIRECT `preadv` of the same file into memory that exists already.
- ``unchecked_cold_bandwidth_fraction``: the same for a store that does not check digests again at
  every read (``--no-check-reads``).
- ``speedup_small``, ``speedup_large``: time from nothing to the first answer of a network whose
  file is not in the page cache, over that of one attached from the store; the largest of each
  table. ``ideal_speedup_*`` is what the same network would reach if loading took no time: what is
  left is torch's `load_state_dict`, and a first answer that reads each weight from memory.
- ``oversubscribed_geomean``: the same ratio without a network, for 37 models that are asked for
  with Pareto popularity by 1 to 10 threads, when half of the bytes fit into the store.
- ``opens_per_s``: opens and closes of a small model by one process.
- ``shared_from_bytes``: size from which a file is shared and not copied, by the manager's estimate.
- ``host_to_gpu_fraction``: null; the store has no GPU tier yet.

Models are scaled down (``scale``) so that the run needs about 1 GB of disk. ``page_cache_*`` is
the same as the entry without it, for a baseline whose file *is* in the page cache; ``load_file_ms``
and ``torch_load_ms`` are what the loaders of safetensors and torch take beside ``warm_attach_ms``,
also from the page cache. Only torch's reads the bytes; the others map them.
"""

import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import numpy as np
import safetensors.torch
import torch

from benchmarks.arguments import json_option, quick_option
from benchmarks.store_models import (
    LARGE,
    MB,
    SMALL,
    drop_page_cache,
    manager,
    network,
    publish,
    read_all,
    timed,
    wait_until_idle,
)
from deployments.modelstore.client import ask, open_model
from deployments.modelstore.errors import StoreFullError
from deployments.modelstore.tensors import load_state_dict
from sojourn.output import print_json, print_table, say

#: The shape of the popularity of models; the paper does not print its own.
PARETO_SHAPE = 1.0
CONCURRENCIES = (1, 2, 4, 6, 8, 10)
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


def warm_attach_ms(name: str, repeats: int) -> tuple[float, float]:
    """Return the median time to attach a model that is in memory, and the processor time of it."""
    load_state_dict(name)
    wall_s, processor_s = [], []
    for _ in range(repeats):
        begin_s = time.thread_time()
        wall_s.append(timed(lambda: load_state_dict(name)))
        processor_s.append(time.thread_time() - begin_s)
    return 1e3 * statistics.median(wall_s), 1e3 * statistics.median(processor_s)


def load_file_ms(path: Path, repeats: int) -> float:
    """Return the median time of safetensors' own loader for a file in the page cache."""
    return 1e3 * statistics.median(
        timed(lambda: safetensors.torch.load_file(path)) for _ in range(repeats)
    )


def torch_load_ms(path: Path, folder: Path, repeats: int) -> float:
    """Return the median time of torch's loader for the same weights in the page cache."""
    copy = folder / "model.pt"
    torch.save(safetensors.torch.load_file(path), copy)
    return 1e3 * statistics.median(timed(lambda: torch.load(copy)) for _ in range(repeats))


def second_process_extra_fraction(name: str, small: str, size_bytes: int) -> float:
    """Return what a second process has for itself, over the model's bytes."""
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


def cold_bandwidth(name: str, path: Path, repeats: int) -> tuple[float, float]:
    """Return the bandwidth of cold opens, and that of plain reads, the best of each in bytes/s."""
    ours, limits = [], []
    for _ in range(repeats):
        wait_until_idle()
        ask("evict", name)
        limits.append(best_preadv_bytes_per_s(path))

        def load() -> None:
            hold, files = open_model(name)
            for file in files:
                os.close(file.descriptor)
            hold.close()

        ours.append(path.stat().st_size / timed(load))
    return max(ours), max(limits)


def first_answer_s(
    tensors: int, size_bytes: int, load: Callable[[], dict[str, torch.Tensor]]
) -> float:
    """Return the seconds from nothing to a network's first answer, its module made beforehand."""
    with torch.device("meta"):
        made = network(tensors, size_bytes)

    def answer() -> None:
        made.load_state_dict(load(), assign=True)
        with torch.inference_mode():
            made(torch.zeros(1, next(made.parameters()).shape[1]))

    return timed(answer)


def speedups(
    name: str, path: Path, tensors: int, size_bytes: int, repeats: int
) -> dict[str, float]:
    """Return a network's first answer from its own file over that from the store.

    `ideal` is the ratio for weights that this process has mapped and read before, so that loading
    takes no time: TrIMS's ideal speedup (its figure 8).
    """

    def from_file(cold: bool) -> float:
        if cold:
            drop_page_cache(path)
        return first_answer_s(tensors, size_bytes, lambda: safetensors.torch.load_file(path))

    load_state_dict(name)
    warm = [
        first_answer_s(tensors, size_bytes, lambda: load_state_dict(name)) for _ in range(repeats)
    ]
    cold_s = statistics.median(from_file(cold=True) for _ in range(repeats))
    cached_s = statistics.median(from_file(cold=False) for _ in range(repeats))
    state = load_state_dict(name)
    read_all(state)
    ideal_s = statistics.median(
        first_answer_s(tensors, size_bytes, lambda: state) for _ in range(repeats)
    )
    warm_s = statistics.median(warm)
    return {
        "cold": cold_s / warm_s,
        "page_cache": cached_s / warm_s,
        "ideal": cold_s / ideal_s,
    }


def oversubscribed(paths: dict[str, Path], requests: int) -> dict[str, float]:
    """Return the speedup of the store with half of the memory, as a geometric mean over models."""
    names = list(paths)
    random = np.random.default_rng(7)
    chosen = [
        names[rank]
        for rank in np.minimum(random.pareto(PARETO_SHAPE, requests) * 4, 36).astype(int)
    ]
    fallbacks = 0

    def from_store(name: str) -> None:
        nonlocal fallbacks
        try:
            read_all(load_state_dict(name))
        except StoreFullError:
            fallbacks += 1
            read_all(safetensors.torch.load_file(paths[name]))

    def from_file(name: str) -> None:
        drop_page_cache(paths[name])
        read_all(safetensors.torch.load_file(paths[name]))

    def from_cache(name: str) -> None:
        read_all(safetensors.torch.load_file(paths[name]))

    logs: dict[str, list[float]] = {"cold": [], "page_cache": []}
    for threads in CONCURRENCIES:
        times_s = {}
        for kind, work in (("store", from_store), ("cold", from_file), ("page_cache", from_cache)):
            with ThreadPoolExecutor(threads) as pool:
                times_s[kind] = list(pool.map(lambda name, w=work: timed(lambda: w(name)), chosen))
        for kind, log in logs.items():
            log += list(np.log(np.array(times_s[kind]) / np.array(times_s["store"])))
    return {kind: float(np.exp(np.mean(log))) for kind, log in logs.items()} | {
        "fallbacks": float(fallbacks)
    }


def opens_per_s(name: str, seconds: float) -> float:
    """Return the opens and closes per second of one process."""
    end_s, opens = time.perf_counter() + seconds, 0
    while time.perf_counter() < end_s:
        hold, files = open_model(name)
        for file in files:
            os.close(file.descriptor)
        hold.close()
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
    results: dict[str, Any] = {"scale": scale, "host_to_gpu_fraction": None}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        say("Writing the models …")
        sizes = {
            **{f"small{i}": (n, round(mb * MB * scale)) for i, (n, mb) in enumerate(SMALL)},
            **{f"large{i}": (n, round(mb * MB * scale)) for i, (n, mb) in enumerate(LARGE)},
        }
        paths = {name: publish(folder / "remote", name, *size) for name, size in sizes.items()}
        largest, tiny = f"large{len(LARGE) - 1}", "small29"
        with manager(folder, host_bytes=4000 * MB):
            say("Attaching …")
            results["first_fetch_s"] = timed(lambda: load_state_dict(largest))
            chosen = (tiny, "small20", "small34", "large0", largest)
            results["warm_attach_ms"], results["warm_attach_processor_ms"] = {}, {}
            for name in chosen:
                size = str(paths[name].stat().st_size)
                (
                    results["warm_attach_ms"][size],
                    results["warm_attach_processor_ms"][size],
                ) = warm_attach_ms(name, 4 * repeats)
            results["load_file_ms"] = {
                str(paths[name].stat().st_size): load_file_ms(paths[name], 4 * repeats)
                for name in chosen
            }
            results["torch_load_ms"] = {
                str(paths[name].stat().st_size): torch_load_ms(paths[name], folder, repeats)
                for name in chosen
            }
            results["second_process_extra_fraction"] = second_process_extra_fraction(
                largest, tiny, paths[largest].stat().st_size
            )
            results["opens_per_s"] = opens_per_s(tiny, 2.0)
            results["shared_from_bytes"] = ask("stats")["sharing"]["shared_from_bytes"]
            say("Loading cold …")
            ours, limit = cold_bandwidth(largest, paths[largest], repeats)
            results["cold_bytes_per_s"], results["preadv_bytes_per_s"] = ours, limit
            results["cold_bandwidth_fraction"] = ours / limit
            say("Answering first …")
            for kind, names in (
                ("small", ("small29", "small22", "small34")),
                ("large", ("large0", largest)),
            ):
                ratios = [speedups(name, paths[name], *sizes[name], repeats) for name in names]
                best = max(ratios, key=lambda ratio: ratio["cold"])
                results[f"speedup_{kind}"] = best["cold"]
                results[f"ideal_speedup_{kind}"] = best["ideal"]
                results[f"page_cache_speedup_{kind}"] = max(r["page_cache"] for r in ratios)
        with manager(folder, 4000 * MB, "--no-check-reads"):
            load_state_dict(largest)
            ours, limit = cold_bandwidth(largest, paths[largest], repeats)
            results["unchecked_cold_bandwidth_fraction"] = ours / limit
        say("Oversubscribing …")
        small = {name: path for name, path in paths.items() if name.startswith("small")}
        total_bytes = sum(path.stat().st_size for path in small.values())
        with manager(folder, host_bytes=total_bytes // 2):
            found = oversubscribed(small, requests=37 if quick else 150)
            results["oversubscribed_geomean"] = found["cold"]
            results["page_cache_oversubscribed_geomean"] = found["page_cache"]
            results["oversubscribed_fallbacks"] = found["fallbacks"]
    if as_json:
        print_json(results)
        return
    print_table(
        ("measured", "value"),
        [
            (key, "none" if value is None else value)
            for key, value in results.items()
            if not isinstance(value, dict)
        ],
    )
    columns = ("warm_attach_ms", "warm_attach_processor_ms", "load_file_ms", "torch_load_ms")
    print_table(
        ("model (bytes)", *columns),
        [
            (size, *(results[column][size] for column in columns))
            for size in results["warm_attach_ms"]
        ],
    )


if __name__ == "__main__":
    main()
