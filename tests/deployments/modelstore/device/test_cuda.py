"""The CUDA driver: on a library that stands in for CUDA's, and on a GPU where there is one.

The library (`tests/support/models/fake_libcuda.c`) has CUDA's functions on host memory. It refuses
wrong arguments, and where cuda.h is installed the compiler compares it with that. So the calls
themselves run here in every process; what a GPU does with them is shown by the tests marked `gpu`.
"""

import ctypes
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from deployments.modelstore.client import ask, open_in_tier
from deployments.modelstore.device import cuda_api
from deployments.modelstore.device.cuda import CudaClient
from deployments.modelstore.device.driver import Export
from deployments.modelstore.errors import DeviceError, OutOfDeviceMemoryError
from deployments.modelstore.tensors import attach
from tests.support.models.model_stores import (
    FILE,
    MB,
    manager_thread,
    publish_models,
    right,
    settings_for,
    stats,
    wait_until_idle,
)

SOURCE = Path(__file__).parents[3] / "support/models/fake_libcuda.c"


@pytest.fixture(scope="module")
def fake_cuda(tmp_path_factory):
    """Return the folder of a libcuda on host memory."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed")
    folder = tmp_path_factory.mktemp("cuda")
    options = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    command = [compiler, *options, "-o", str(folder / cuda_api.LIBRARY), str(SOURCE)]
    subprocess.run(command, check=True)
    return folder


@contextmanager
def fake_store(tmp_path, fake_cuda, words="", gpu_bytes=10 * MB):
    """Run a manager whose holder, like this process, has the fake library."""
    publish_models(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_api, "LIBRARY", str(fake_cuda / cuda_api.LIBRARY))
        patch.setenv("LD_LIBRARY_PATH", str(fake_cuda))
        patch.setenv("FAKE_CUDA", words)
        patch.setenv("FAKE_CUDA_BYTES", str(gpu_bytes))
        with manager_thread(settings_for(tmp_path, device_bytes=20 * MB)) as store:
            yield store


@contextmanager
def region_of(store):
    """Attach to the model without torch, which takes no host memory for a GPU's."""
    hold, grant, descriptors = open_in_tier("device", "m", store)
    [size_bytes] = grant["sizes_bytes"]
    region = CudaClient(0).attach(Export(size_bytes, *descriptors))
    for descriptor in descriptors:
        os.close(descriptor)
    try:
        yield region
    finally:
        region.close()
        hold.close()


def weight_in(region):
    """Return the bytes at the address that torch would be told; they end the file, too."""
    interface = region.array(256 * 2, 80_000).__cuda_array_interface__
    assert (interface["shape"], interface["typestr"]) == ((80_000,), "|u1")
    return ctypes.string_at(interface["data"][0], 80_000)


@pytest.mark.parametrize(("words", "access"), [("", "r--s"), ("no-read-only", "rw-s")])
def test_memory_is_shared_read_only_if_the_driver_can(tmp_path, fake_cuda, words, access):
    with fake_store(tmp_path, fake_cuda, words) as store:
        with region_of(store) as region:
            maps = Path("/proc/self/maps").read_text().splitlines()
            assert all(access in line for line in maps if "fake-cuda" in line)
            expected = (tmp_path / "remote/pytorch/m/1" / FILE).read_bytes()
            assert region.read(0, 100) == expected[:100]
            assert weight_in(region) == expected[-80_000:]
            with region_of(store) as second:
                assert weight_in(second) == expected[-80_000:]
        wait_until_idle(store)
        ask("evict", "m", store)
        assert "fake-cuda" not in Path("/proc/self/maps").read_text()


def test_a_driver_that_cannot_share_is_one_line(tmp_path, fake_cuda):
    with fake_store(tmp_path, fake_cuda, "no-descriptors") as store:
        fault = stats(store)["device"]["fault"]
        assert fault == "the GPU's driver cannot share virtual memory by file descriptors"


def test_a_full_gpu_is_told_from_other_faults(tmp_path, fake_cuda):
    with (
        fake_store(tmp_path, fake_cuda, gpu_bytes=1_000_000) as store,
        pytest.raises(OutOfDeviceMemoryError, match="cuMemCreate: out of memory"),
    ):
        open_in_tier("device", "m", store)


def test_a_library_that_is_not_cudas_is_refused(monkeypatch):
    for library, said in (("libc.so.6", "cuInit"), ("libcuda-not-there.so", "cannot open")):
        monkeypatch.setattr(cuda_api, "LIBRARY", library)
        with pytest.raises(DeviceError, match=f"no usable CUDA driver: .*{said}"):
            CudaClient(0)


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.mark.gpu
@needs_gpu
def test_a_gpus_memory_is_shared(tmp_path, caplog):
    publish_models(tmp_path)
    with manager_thread(settings_for(tmp_path, device_bytes=20 * MB)) as store:
        first = attach("m", socket_path=store, device="cuda:0")
        second = attach("m", socket_path=store, device="cuda:0")
        assert not caplog.records
        assert second[1] == "device"
        for tensors, _ in (first, second):
            assert tensors["weight"].device == torch.device("cuda:0")
            assert right({name: tensor.cpu() for name, tensor in tensors.items()})
