"""A model's weights as ordinary torch tensors on shared memory.

The tensors lie in a private mapping of memory that all processes share. Reading shares it; a write
copies the page and is visible to this `load_state_dict` only.
"""

import gc
import logging
import mmap
import os
from pathlib import Path

import numpy as np
import torch

from deployments.modelstore.client import Hold, SharedFile, open_model
from deployments.modelstore.device.cuda import CudaClient
from deployments.modelstore.device.tensors import attach_to_device
from deployments.modelstore.dtypes import NUMPY_DTYPES, TORCH_ONLY, stored_shape
from deployments.modelstore.errors import StoreError, UnavailableError, UntrustedFileError
from deployments.modelstore.files.safetensors_header import TensorEntry, header_end, read_header


class Mapping(mmap.mmap):
    """A private mapping that keeps its model in the store until the last tensor is gone."""

    hold: Hold
    #: Its address, where somebody asks for it.
    begin: int


def map_file(file: SharedFile, hold: Hold) -> Mapping:
    content = Mapping(file.descriptor, file.size_bytes, access=mmap.ACCESS_COPY)
    content.hold = hold
    return content


logger = logging.getLogger(__name__)


def load_state_dict(
    name: str,
    device: str | torch.device = "cpu",
    socket_path: Path | None = None,
    *,
    share: bool = True,
) -> dict[str, torch.Tensor]:
    """Load a model's tensors from this machine's store, without reading or copying them.

    The store keeps a model that is shared in memory until the last of the tensors is gone, or this
    process is.

    Parameters
    ----------
    name : str
        ``[framework/]name[@version]``; the defaults are ``pytorch`` and ``1``.
    device : str or torch.device
        On a GPU, too, processes share one copy of the weights, if the store has that GPU's memory
        as a tier. Elsewhere each process has its own copy, and the log says why.
    socket_path : Path, optional
        The manager's socket; by default that of this user.
    share : bool
        False for a private copy on a GPU, as for training: shared memory there must not be
        written to. It is mapped for reading only, and a write fails on the GPU, after which the
        process can use that GPU no more. On the CPU a write copies the page.

    Returns
    -------
    dict of str to torch.Tensor
        The tensors of all of the model's files, by name.

    Raises
    ------
    StoreError
        The store refused the model, or there is no store.
    """
    return attach(name, socket_path, device, share=share)[0]


def attach(
    name: str,
    socket_path: Path | None = None,
    device: str | torch.device = "cpu",
    *,
    share: bool = True,
) -> tuple[dict[str, torch.Tensor], str]:
    """Return a model's tensors, and the fastest tier that had all of it when it was opened.

    The tier is ``device``, ``host``, ``disk`` or ``remote``. Parameters and errors are those of
    `load_state_dict`.
    """
    target = torch.device(device)
    if target.type == "cpu":
        return _attach_on_host(name, socket_path)
    if target.type == "cuda" and share and torch.cuda.is_available():
        try:
            ordinal = torch.cuda.current_device() if target.index is None else target.index
            return attach_to_device(name, CudaClient(ordinal), socket_path)
        except UnavailableError:
            raise
        except StoreError as error:
            logger.warning("%s: copied to %s, not shared: %s", name, target, error)
    tensors, source = _attach_on_host(name, socket_path)
    return {key: tensor.to(target) for key, tensor in tensors.items()}, source


def _attach_on_host(name: str, socket_path: Path | None) -> tuple[dict[str, torch.Tensor], str]:
    hold, files = open_model(name, socket_path)
    tensors: dict[str, torch.Tensor] = {}
    collecting = gc.isenabled()
    # Thousands of new objects would trigger several collections of all of torch's objects.
    gc.disable()
    try:
        for file in files:
            for key, tensor in _tensors_of(file, hold).items():
                if key in tensors:
                    raise UntrustedFileError(f"{name}: tensor {key!r} is in two of its files")
                tensors[key] = tensor
    finally:
        if collecting:
            gc.enable()
        for file in files:
            os.close(file.descriptor)
    return tensors, hold.source


def _tensors_of(file: SharedFile, hold: Hold) -> dict[str, torch.Tensor]:
    content = map_file(file, hold)
    with memoryview(content) as view, view[: header_end(view[:8], file.size_bytes)] as header:
        entries = read_header(header, file.size_bytes)
    return {entry.name: _tensor(content, entry) for entry in entries}


def _tensor(content: Mapping, entry: TensorEntry) -> torch.Tensor:
    _, name, shape, begin, end = entry
    dtype, shape = NUMPY_DTYPES[name], stored_shape(name, shape)
    if begin == end:
        array = np.empty(shape, dtype)
    elif begin % dtype.itemsize:
        # Torch expects aligned elements; the format only recommends them.
        array = np.frombuffer(content[begin:end], dtype).reshape(shape).copy()
    else:
        # By numpy, which takes a third of the time of `torch.frombuffer` and a view. The tensor has
        # its own storage, so that saving it does not save the whole file.
        array = np.ndarray(shape, dtype, content, begin)
    tensor = torch.from_numpy(array)
    return tensor.view(TORCH_ONLY[name]) if name in TORCH_ONLY else tensor
