"""A model's weights as ordinary torch tensors on shared memory.

The tensors lie in a private mapping of memory that all processes share: reading shares it, and a
write copies the page and is seen by this `load_state_dict` alone.
"""

import mmap
import os
from collections.abc import Mapping
from pathlib import Path

import torch

from modelstore.client import Hold, OnProgress, SharedFile, open_model
from modelstore.errors import UntrustedFileError
from modelstore.safetensors_header import TensorEntry, header_end, read_header

_DTYPES: Mapping[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "U16": torch.uint16,
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "F32": torch.float32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F64": torch.float64,
    "C64": torch.complex64,
}


class _Mapping(mmap.mmap):
    """A private mapping that keeps its model in the store until the last tensor is gone."""

    hold: Hold


def load_state_dict(
    name: str,
    device: str | torch.device = "cpu",
    on_progress: OnProgress | None = None,
    socket_path: Path | None = None,
) -> dict[str, torch.Tensor]:
    """Load a model's tensors from this machine's store, without reading or copying them on the CPU.

    Use them in a module made on the meta device::

        with torch.device("meta"):
            network = Network()
        network.load_state_dict(modelstore.load_state_dict("resnet50@2"), assign=True)

    The store keeps the model in memory until the last of the tensors is gone, or this process is.

    Parameters
    ----------
    name : str
        ``[framework/]name[@version]``; the defaults are ``pytorch`` and ``1``.
    device : str or torch.device
        Another device than the CPU gets a private copy; the store shares no GPU memory yet.
    on_progress : callable, optional
        Called with the bytes done and the bytes in all while the store fetches the model.
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
    hold, files = open_model(name, on_progress, socket_path)
    tensors: dict[str, torch.Tensor] = {}
    try:
        for file in files:
            for key, tensor in _tensors_of(file, hold).items():
                if key in tensors:
                    raise UntrustedFileError(f"{name}: tensor {key!r} is in two of its files")
                tensors[key] = tensor
    finally:
        for file in files:
            os.close(file.descriptor)
    if torch.device(device).type != "cpu":
        return {key: tensor.to(device) for key, tensor in tensors.items()}
    return tensors


def _tensors_of(file: SharedFile, hold: Hold) -> dict[str, torch.Tensor]:
    mapping = _Mapping(file.descriptor, file.size_bytes, access=mmap.ACCESS_COPY)
    mapping.hold = hold
    with memoryview(mapping) as view, view[: header_end(view[:8], file.size_bytes)] as header:
        entries = read_header(header, file.size_bytes)
    return {entry.name: _tensor(mapping, entry) for entry in entries}


def _tensor(mapping: _Mapping, entry: TensorEntry) -> torch.Tensor:
    dtype = _DTYPES[entry.dtype]
    if entry.begin == entry.end:
        return torch.empty(entry.shape, dtype=dtype)
    if entry.begin % dtype.itemsize:
        # Torch expects aligned elements; the format only recommends them.
        return torch.frombuffer(bytearray(mapping[entry.begin : entry.end]), dtype=dtype).view(
            entry.shape
        )
    count = (entry.end - entry.begin) // dtype.itemsize
    flat = torch.frombuffer(mapping, dtype=dtype, count=count, offset=entry.begin)
    return flat if len(entry.shape) == 1 else flat.view(entry.shape)
