"""The data types of safetensors in torch."""

import torch

from deployments.modelstore.files.safetensors_header import TORCH_DTYPES, TensorEntry


def typed(content: torch.Tensor, entry: TensorEntry) -> torch.Tensor:
    """Return a tensor's bytes, an array of `torch.uint8`, in its data type and shape."""
    shape = entry.shape
    if entry.dtype == "F4":  # two values share a byte
        shape = (*shape[:-1], shape[-1] // 2)
    return content.view(getattr(torch, TORCH_DTYPES[entry.dtype])).view(shape)
