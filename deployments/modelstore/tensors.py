"""A model's weights as ordinary torch tensors on shared memory.

The tensors lie in a private mapping of memory that all processes share. Reading shares it; a write
copies the page and is visible to this `load_state_dict` only.
"""

import logging
import mmap
import os
import time
from pathlib import Path

import torch

from deployments.modelstore.client import Hold, SharedFile, open_model
from deployments.modelstore.device.cuda import CudaClient
from deployments.modelstore.device.tensors import attach_to_device
from deployments.modelstore.dtypes import typed
from deployments.modelstore.errors import StoreError, UnavailableError, UntrustedFileError
from deployments.modelstore.files.safetensors_header import TensorEntry, read_entries


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
    name: str, device: str | torch.device = "cpu", socket_path: Path | None = None
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
        as a tier. Elsewhere each process has its own copy, and the log says why. Shared memory of a
        GPU is mapped for reading only; a write fails on the GPU, after which the process can use
        that GPU no more. On the CPU a write copies the page.
    socket_path : Path, optional
        The manager's socket; by default that of this user.

    Returns
    -------
    dict of str to torch.Tensor
        The tensors of all of the model's files, by name.

    Raises
    ------
    StoreError
        The store refused the model, or there is no store.
    """
    return attach(name, socket_path, device)[0]


def attach(
    name: str, socket_path: Path | None = None, device: str | torch.device = "cpu"
) -> tuple[dict[str, torch.Tensor], str]:
    """Return a model's tensors, and the fastest tier that had all of it when it was opened.

    The tier is ``device``, ``host``, ``disk`` or ``remote``. Parameters and errors are those of
    `load_state_dict`.
    """
    target = torch.device(device)
    if target.type == "cpu":
        return _attach_on_host(name, socket_path)
    if target.type == "cuda" and torch.cuda.is_available():
        try:
            ordinal = torch.cuda.current_device() if target.index is None else target.index
            return attach_to_device(name, CudaClient(ordinal), socket_path, if_faster=True)
        except UnavailableError:
            raise
        except StoreError as error:
            logger.warning("%s: copied to %s, not shared: %s", name, target, error)
    tensors, source = _attach_on_host(name, socket_path)
    return {key: tensor.to(target) for key, tensor in tensors.items()}, source


def _attach_on_host(name: str, socket_path: Path | None) -> tuple[dict[str, torch.Tensor], str]:
    begin_s = time.monotonic()
    hold, files = open_model(name, socket_path)
    tensors: dict[str, torch.Tensor] = {}
    try:
        for file in files:
            content = map_file(file, hold)
            for entry in read_entries(file.descriptor):
                if entry.name in tensors:
                    raise UntrustedFileError(f"{name}: tensor {entry.name!r} is in two files")
                tensors[entry.name] = _tensor(content, entry)
    finally:
        for file in files:
            os.close(file.descriptor)
    hold.attached("host", begin_s)
    return tensors, hold.source


def _tensor(content: Mapping, entry: TensorEntry) -> torch.Tensor:
    size_bytes = entry.end - entry.begin
    if not size_bytes:
        return typed(torch.empty(0, dtype=torch.uint8), entry)
    # It has its own storage, so that saving it does not save the whole file.
    own = torch.frombuffer(content, dtype=torch.uint8, count=size_bytes, offset=entry.begin)
    tensor = typed(own, entry)
    # Torch expects aligned elements; the format only recommends them.
    return tensor.clone() if entry.begin % tensor.dtype.itemsize else tensor
