"""A model's weights as torch tensors on shared device memory."""

import os
from pathlib import Path

import numpy as np
import torch

from deployments.modelstore.client import Hold, open_in_tier
from deployments.modelstore.device.driver import ClientDriver, Export, Region
from deployments.modelstore.device.layout import offsets
from deployments.modelstore.dtypes import NUMPY_DTYPES, TORCH_ONLY, stored_shape
from deployments.modelstore.errors import DeviceError, UntrustedFileError
from deployments.modelstore.files.safetensors_header import TensorEntry, header_end, read_header


def attach_to_device(
    name: str, driver: ClientDriver, socket_path: Path | None = None
) -> tuple[dict[str, torch.Tensor], str]:
    """Attach to a model in the store's device tier; the store loads it there if necessary.

    Return the tensors, and the fastest tier that had all of the model. The store keeps it on the
    device until the last of the tensors is gone. Raises `StoreError` if there is no store, it is
    one of another device, or it refused the model.
    """
    torch.empty(0, device=driver.torch_device)  # makes torch initialize the device
    connection, grant, descriptors = open_in_tier("device", name, socket_path)
    try:
        with connection:
            if grant["device"] != driver.device:
                raise DeviceError(
                    f"the store's device is {grant['device']}, and {driver.torch_device} is "
                    f"{driver.device}"
                )
            exports = [
                Export(size_bytes, descriptor)
                for (_, _, size_bytes), descriptor in zip(grant["files"], descriptors, strict=True)
            ]
            # After an error, attached regions detach as they are garbage collected.
            regions = [driver.attach(export) for export in exports]
            hold = Hold(connection.detach(), str(grant["source"]))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    tensors: dict[str, torch.Tensor] = {}
    for region, (_, size_bytes, _) in zip(regions, grant["files"], strict=True):
        region.hold = hold
        for key, tensor in _tensors_of(region, size_bytes, driver.torch_device):
            if key in tensors:
                raise UntrustedFileError(f"{name}: tensor {key!r} is in two of its files")
            tensors[key] = tensor
    return tensors, hold.source


def _tensors_of(
    region: Region, size_bytes: int, torch_device: str
) -> list[tuple[str, torch.Tensor]]:
    data_begin = header_end(region.read(0, 8), size_bytes)
    entries = read_header(region.read(0, data_begin), size_bytes)
    places = offsets(data_begin, entries)
    return [
        (entry.name, _tensor(region, entry, offset, torch_device))
        for entry, offset in zip(entries, places, strict=False)
    ]


def _tensor(region: Region, entry: TensorEntry, offset: int, torch_device: str) -> torch.Tensor:
    _, name, shape, begin, end = entry
    shape = stored_shape(name, shape)
    if begin == end:
        dtype = TORCH_ONLY.get(name) or torch.from_numpy(np.empty(0, NUMPY_DTYPES[name])).dtype
        return torch.empty(shape, dtype=dtype, device=torch_device)
    array = region.array(offset, shape, NUMPY_DTYPES[name].str)
    tensor = torch.as_tensor(array, device=torch_device)
    return tensor.view(TORCH_ONLY[name]) if name in TORCH_ONLY else tensor
