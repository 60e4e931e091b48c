"""Where a model's weights come from: a safetensors file, or this machine's model store."""

from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import load_file

import modelstore

if TYPE_CHECKING:
    import torch

STORE_PREFIX = "store:"


def load_weights(source: str | Path) -> "dict[str, torch.Tensor]":
    """Load a model's tensors on the CPU.

    Parameters
    ----------
    source : str or Path
        A safetensors file, or ``store:[framework/]name[@version]`` for a model of the store. Its
        memory is shared with all processes of this machine that load it from there.

    Returns
    -------
    dict of str to torch.Tensor
        For ``load_state_dict(assign=True)`` of a module made on the meta device, which copies
        nothing.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    modelstore.errors.StoreError
        The store refused the model, or there is no store.
    """
    name = str(source)
    if name.startswith(STORE_PREFIX):
        return modelstore.load_state_dict(name.removeprefix(STORE_PREFIX))
    return load_file(source)
