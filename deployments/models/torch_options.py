"""Options of all torch models: the device and the number of CPU threads."""

import torch

from policy.errors import InvalidInputError


def check_positive_int(model: str, option: str, value: object) -> int:
    """Return `value` if it is a whole number of at least 1; raise `InvalidInputError` otherwise."""
    if type(value) is not int or value < 1:
        raise InvalidInputError(
            f"model {model}: {option} must be a whole number of at least 1, not {value!r}"
        )
    return value


def use_torch(device: str, threads: int | None) -> torch.device:
    """Set torch's number of CPU threads in this process, and return the torch device.

    None leaves their number as it is: in a replica, one for each of its CPUs. `InvalidInputError`:
    the device is ``cuda`` and torch finds no GPU.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise InvalidInputError(
            "device cuda: torch finds no GPU (no NVIDIA GPU, no driver, or a torch build without "
            "CUDA); use device cpu"
        )
    if threads is not None:
        torch.set_num_threads(threads)
    return torch.device(device)
