"""A model's weights as ordinary torch tensors on shared memory.

The tensors lie in a private mapping of memory that all processes share: reading shares it, and a
write copies the page and is seen by this `load_state_dict` alone. A model that is so small that
copying it is faster (`modelstore.sharing`) is copied.
"""

import gc
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from modelstore.client import Hold, OnProgress, SharedFile, open_model
from modelstore.errors import UntrustedFileError
from modelstore.safetensors_header import TensorEntry, header_end, read_header
from modelstore.sharing import Sharing, copy_of

#: Numpy's data types by the format's names.
_NUMPY_DTYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype("bool"),
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "F8_E4M3": np.dtype("u1"),
    "F8_E5M2": np.dtype("u1"),
    "U16": np.dtype("u2"),
    "I16": np.dtype("i2"),
    "F16": np.dtype("f2"),
    "BF16": np.dtype("u2"),
    "U32": np.dtype("u4"),
    "I32": np.dtype("i4"),
    "F32": np.dtype("f4"),
    "U64": np.dtype("u8"),
    "I64": np.dtype("i8"),
    "F64": np.dtype("f8"),
    "C64": np.dtype("c8"),
}
#: Torch's data types that numpy lacks, and so has as whole numbers above.
_TORCH_ONLY: Mapping[str, torch.dtype] = {
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "BF16": torch.bfloat16,
}


class _Mapping(mmap.mmap):
    """A private mapping that keeps its model in the store until the last tensor is gone."""

    hold: Hold


@dataclass(frozen=True)
class AttachedModel:
    """A model's tensors on shared memory.

    Attributes
    ----------
    tensors : dict of str to torch.Tensor
        The tensors of all of the model's files, by name. If they are shared, the store keeps the
        model in memory until the last of them is gone.
    source : str
        The fastest tier that had all of the model when it was opened: ``host``, ``disk`` or
        ``remote``.
    sharing : Sharing
        Whether the memory is shared, and why.
    """

    tensors: dict[str, torch.Tensor]
    source: str
    sharing: Sharing


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

    The store keeps a model that is shared in memory until the last of the tensors is gone, or this
    process is.

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
    tensors = attach(name, on_progress, socket_path).tensors
    if torch.device(device).type != "cpu":
        return {key: tensor.to(device) for key, tensor in tensors.items()}
    return tensors


def attach(
    name: str, on_progress: OnProgress | None = None, socket_path: Path | None = None
) -> AttachedModel:
    """Attach to a model of this machine's store, and say where the model was.

    Parameters and errors are those of `load_state_dict`.
    """
    hold, files = open_model(name, on_progress, socket_path)
    tensors: dict[str, torch.Tensor] = {}
    collecting = gc.isenabled()
    # Thousands of new objects would have the collector walk all of torch's, some times over.
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
    return AttachedModel(tensors, hold.source, hold.sharing)


def _tensors_of(file: SharedFile, hold: Hold) -> dict[str, torch.Tensor]:
    content: _Mapping | bytearray
    if hold.sharing.shared:
        content = _Mapping(file.descriptor, file.size_bytes, access=mmap.ACCESS_COPY)
        content.hold = hold
    else:
        content = copy_of(file.descriptor, file.size_bytes)
    with memoryview(content) as view, view[: header_end(view[:8], file.size_bytes)] as header:
        entries = read_header(header, file.size_bytes)
    return {entry.name: _tensor(content, entry) for entry in entries}


def _tensor(content: _Mapping | bytearray, entry: TensorEntry) -> torch.Tensor:
    _, name, shape, begin, end = entry
    dtype = _NUMPY_DTYPES[name]
    if begin == end:
        array = np.empty(shape, dtype)
    elif begin % dtype.itemsize:
        # Torch expects aligned elements; the format only recommends them.
        array = np.frombuffer(content[begin:end], dtype).reshape(shape).copy()
    else:
        # By way of numpy, because that takes a third of the time of `torch.frombuffer` and a view.
        # The tensor has a storage of its own, so that saving it does not save the whole file.
        array = np.ndarray(shape, dtype, content, begin)
    tensor = torch.from_numpy(array)
    return tensor.view(_TORCH_ONLY[name]) if name in _TORCH_ONLY else tensor
