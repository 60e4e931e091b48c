"""A model's weights as torch tensors on shared device memory."""

import os
import time
from pathlib import Path

import torch

from deployments.modelstore.client import open_in_tier
from deployments.modelstore.device.driver import ClientDriver, Export, Region
from deployments.modelstore.device.layout import offsets
from deployments.modelstore.dtypes import typed
from deployments.modelstore.errors import DeviceError, UntrustedFileError
from deployments.modelstore.files.safetensors_header import (
    LENGTH_BYTES,
    TensorEntry,
    entries_of,
    header_end,
)


def attach_to_device(
    name: str,
    driver: ClientDriver,
    socket_path: Path | None = None,
    *,
    if_faster: bool = False,
) -> tuple[dict[str, torch.Tensor], str]:
    """Attach to a model in the store's device tier; the store loads it there if necessary.

    Return the tensors, and the fastest tier that had all of the model. The store keeps it on the
    device until the last of the tensors is gone. Raises `StoreError` if there is no store, it is
    one of another device, or it refused the model, as with `if_faster` if a copy takes less time.
    """
    torch.empty(0, device=driver.torch_device)  # makes torch initialize the device
    begin_s = time.monotonic()
    hold, grant, descriptors = open_in_tier("device", name, socket_path, if_faster=if_faster)
    try:
        if grant["device"] != driver.device:
            raise DeviceError(
                f"the store's device is {grant['device']}, and {driver.torch_device} is "
                f"{driver.device}"
            )
        # After an error, attached regions detach as they are garbage collected.
        regions = [
            driver.attach(Export(size_bytes, descriptor))
            for size_bytes, descriptor in zip(grant["sizes_bytes"], descriptors, strict=True)
        ]
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    tensors: dict[str, torch.Tensor] = {}
    for region in regions:
        region.hold = hold
        header = region.read(0, header_end(region.read(0, LENGTH_BYTES)))
        entries = entries_of(header)
        for entry, offset in zip(entries, offsets(len(header), entries), strict=False):
            if entry.name in tensors:
                raise UntrustedFileError(f"{name}: tensor {entry.name!r} is in two files")
            tensors[entry.name] = _tensor(region, entry, offset, driver.torch_device)
    hold.attached("device", begin_s)
    return tensors, hold.source


def _tensor(region: Region, entry: TensorEntry, offset: int, torch_device: str) -> torch.Tensor:
    size_bytes = entry.end - entry.begin
    if not size_bytes:
        return typed(torch.empty(0, dtype=torch.uint8, device=torch_device), entry)
    content = torch.as_tensor(region.array(offset, size_bytes), device=torch_device)
    return typed(content, entry)
