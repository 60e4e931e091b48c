"""Measure the model store on the CPU, with networks of TrIMS's tables 3 and 4 and random weights.

    python -m benchmarks.model_store [--quick] [--json]

All ratios compare two measurements of the same run:

- ``networks``: the time to load a network's weights from the store's memory, and by `torch.load` of
  a file in the page cache; the times until the first answer, likewise, as a ratio; and the memory
  (PSS) of each of two processes that have read every weight, over the weights' bytes.
- ``grid``: TrIMS's figure 11, the geometric mean of the speedups of the first answer by network, by
  how many networks are requested and by how many processes. Requests choose networks by a Pareto
  distribution; the store's memory has room for two thirds of the bytes of all networks.
- ``opens_per_s``: opens and closes of a small model by one process.
- ``cold_bandwidth_fraction``: bandwidth of an open whose model is on disk, as a share of the best
  O_DIRECT `preadv` of the same file into memory that exists already.

A process has imported torch before, builds the network without weights, and drops it at the end.
"""

import ctypes
import mmap
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.pool import Pool
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import click
import psutil
import torch
from torch import Tensor

from benchmarks.arguments import json_option, print_result, quick_option
from benchmarks.networks import NETWORKS
from benchmarks.store_models import MB, manager, publish, read_all, timed, wait_until_idle
from deployments.modelstore.client import ask, open_model
from deployments.modelstore.errors import StoreFullError
from deployments.modelstore.tensors import load_state_dict
from sojourn.output import say

#: Size of the reads that the disk's best bandwidth is measured with.
READ_BYTES = 8 << 20
SOURCES = ("store", "torch.load")

_together: Barrier


@contextmanager
def processes(count: int) -> Iterator[Pool]:
    """Run processes that have imported torch, each with one thread."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(count, initializer=_begin, initargs=(context.Barrier(count),)) as pool:
        yield pool


def _begin(together: Barrier) -> None:
    global _together
    _together = together
    torch.set_num_threads(1)


def weights(source: str, folder: Path, name: str) -> dict[str, Tensor]:
    if source == "store":
        try:
            return load_state_dict(name)
        except StoreFullError:
            pass
    state: dict[str, Tensor] = torch.load(folder / f"{name}.pt")
    return state


def first_answer(source: str, folder: Path, name: str) -> tuple[float, float]:
    """Return the seconds until the weights are there, and until the first answer."""
    make, side = NETWORKS[name]
    begin_s = time.perf_counter()
    with torch.device("meta"):
        network = make().eval()
    built_s = time.perf_counter()
    state = weights(source, folder, name)
    loaded_s = time.perf_counter()
    network.load_state_dict(state, assign=True)
    with torch.inference_mode():
        network(torch.zeros(1, 3, side, side))
    return loaded_s - built_s, time.perf_counter() - begin_s


def pss_of_weights(source: str, folder: Path, name: str) -> int:
    """Return by how much this process's memory grows while all processes hold a network's."""
    ctypes.CDLL(None).malloc_trim(0)
    before_bytes = psutil.Process().memory_full_info().pss
    state = weights(source, folder, name)
    read_all(state)
    _together.wait()
    grown_bytes = psutil.Process().memory_full_info().pss - before_bytes
    _together.wait()
    return grown_bytes


def compare(folder: Path, name: str, repeats: int, pool: Pool) -> dict[str, Any]:
    """Return the row of a network, from two processes that take turns."""
    times_s: dict[str, list[tuple[float, float]]] = {source: [] for source in SOURCES}
    pss_bytes = {
        source: statistics.mean(pool.starmap(pss_of_weights, [(source, folder, name)] * 2, 1))
        for source in SOURCES
    }
    for _ in range(repeats):
        for source in SOURCES:
            times_s[source].append(pool.apply(first_answer, (source, folder, name)))
    load_ms = {s: 1e3 * statistics.median(load for load, _ in times_s[s]) for s in SOURCES}
    answer_s = {s: statistics.median(answer for _, answer in times_s[s]) for s in SOURCES}
    size_bytes = (folder / f"{name}.pt").stat().st_size
    return {
        "network": name,
        "megabytes": size_bytes / MB,
        "store_ms": load_ms["store"],
        "torch_load_ms": load_ms["torch.load"],
        "first_answer_speedup": answer_s["torch.load"] / answer_s["store"],
        "store_pss_fraction": pss_bytes["store"] / size_bytes,
        "torch_load_pss_fraction": pss_bytes["torch.load"] / size_bytes,
    }


def cell(folder: Path, names: list[str], requests: int, pool: Pool) -> float:
    """Return the geometric mean by network of the speedups of the first answer."""
    popularity = [1 / rank for rank in range(1, 1 + len(names))]
    chosen = random.Random(1).choices(names, popularity, k=requests)
    times_s: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for source in SOURCES:
        answers = pool.starmap(first_answer, [(source, folder, name) for name in chosen], 1)
        for name, (_, answer_s) in zip(chosen, answers, strict=True):
            times_s[source, name].append(answer_s)
    return statistics.geometric_mean(
        statistics.mean(times_s["torch.load", name]) / statistics.mean(times_s["store", name])
        for name in set(chosen)
    )


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
@quick_option("Use three networks and fewer repeats.")
@json_option
def main(quick: bool, as_json: bool) -> None:
    """Measure the model store on the CPU."""
    torch.set_num_threads(1)
    names = [*NETWORKS][: 3 if quick else None]
    repeats, requests = (2, 4) if quick else (3, 10)
    results: dict[str, Any] = {"networks": [], "grid": []}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        say("Writing the networks …")
        paths = {}
        for name in names:
            network = NETWORKS[name][0]()
            paths[name] = publish(folder / "remote", name, network)
            torch.save(network.state_dict(), folder / f"{name}.pt")
            del network
        all_bytes = sum(path.stat().st_size for path in paths.values())
        with manager(folder, host_bytes=2 * all_bytes):
            say("Loading …")
            with processes(2) as pool:
                for name in names:
                    results["networks"].append(compare(folder, name, repeats, pool))
            results["opens_per_s"] = opens_per_s(names[0], 2.0)
            say("Loading cold …")
            large = names[-2]
            results["cold_bandwidth_fraction"] = cold_bandwidth_fraction(
                large, paths[large], repeats
            )
        with manager(folder, host_bytes=all_bytes * 2 // 3):
            for count in (1, 2) if quick else (1, 2, 4):
                say(f"{count} processes …")
                parts = range(2 - len(names) % 2, 1 + len(names), 2)
                with processes(count) as pool:
                    speedups = {
                        f"{part} networks": cell(folder, names[:part], requests, pool)
                        for part in parts
                    }
                results["grid"].append({"processes": count} | speedups)
    print_result(results, as_json)


if __name__ == "__main__":
    main()
