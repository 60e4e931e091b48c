"""Shared weights for unmodified code.

Where a library maps a file of weights, it asks torch for the storage (`UntypedStorage.from_file`):
safetensors for each file that it opens, and `torch.load` for each that it maps. Here that storage
is memory of the store, whatever library asked, and however it was imported.
"""

import ctypes
import logging
import os
import threading
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch

from deployments.modelstore.client import ask, share_file
from deployments.modelstore.errors import StoreError, UnavailableError
from deployments.modelstore.tensors import Mapping as StoreMapping
from deployments.modelstore.tensors import map_file

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Sharing:
    """One use of `shared_weights`.

    `file` is the latest that was loaded, and `found_in` where it was: ``host``, the store's memory,
    or still in the ``file``.
    """

    socket_path: Path | None
    file: str | None = None
    found_in: str | None = None


_lock = threading.Lock()
#: Those that have begun and not ended; the latest takes the files.
_active: list[Sharing] = []
_mappings: WeakSet[StoreMapping] = WeakSet()
_undo: list[Callable[[], None]] = []


@contextmanager
def shared_weights(socket_path: Path | None = None) -> Iterator[Sharing]:
    """Load weights from this machine's store, whatever code in the block asks for them.

    This holds for all threads of the process, and for files that are loaded with safetensors, with
    `torch.load` unless ``weights_only=False``, and through them, as by `from_pretrained` of
    transformers. The first process to load a file brings it into the store's memory by its digest;
    the others map what is there. A process that writes into its weights gets a copy of the pages
    that it writes. Modules that copy what they load (`load_state_dict`) get the shared memory
    instead, where it is equal to the copy. A file that the store refuses, as for want of room, is
    loaded as usual, and the log says why::

        with sojourn.shared_weights():
            model = AutoModel.from_pretrained("my-model")

    Parameters
    ----------
    socket_path : Path, optional
        The manager's socket; by default that of this user.

    Raises
    ------
    StoreError
        There is no store; `sojourn store serve` starts one.
    """
    ask("stats", socket_path=socket_path)
    sharing = Sharing(socket_path)
    with _lock:
        if not _active:
            _install()
        _active.append(sharing)
    try:
        yield sharing
    finally:
        with _lock:
            _active.remove(sharing)
            if not _active:
                while _undo:
                    _undo.pop()()


def _install() -> None:
    for owner, name, replace in (
        (torch, "load", _mapping_load),
        (torch.nn.Module, "load_state_dict", _adopting_load),
        (torch.UntypedStorage, "from_file", _sharing_from_file),
    ):
        ordinary = getattr(owner, name)
        if name in vars(owner):
            _undo.append(partial(setattr, owner, name, ordinary))
        else:
            _undo.append(partial(delattr, owner, name))
        setattr(owner, name, replace(ordinary))


def _sharing_from_file(ordinary: Callable[..., Any]) -> Any:
    return staticmethod(partial(_from_file, ordinary))


def _from_file(
    ordinary: Callable[..., Any], filename: str, shared: bool = False, nbytes: int = 0
) -> Any:
    """Return the storage of a file; with `shared`, writes go to the file, which stays its own."""
    sharing = _active[-1] if _active else None
    if sharing is None or shared:
        return ordinary(filename, shared, nbytes)
    sharing.file, sharing.found_in = filename, "file"
    try:
        hold, file = share_file(filename, sharing.socket_path)
    except UnavailableError:
        raise
    except StoreError as error:
        logger.warning("%s: not shared: %s", filename, error)
        return ordinary(filename, shared, nbytes)
    try:
        mapping = map_file(file, hold)
    finally:
        os.close(file.descriptor)
    if hold.source != "remote":
        sharing.found_in = hold.source
    storage = torch.frombuffer(mapping, dtype=torch.uint8).untyped_storage()
    mapping.begin = storage.data_ptr()
    _mappings.add(mapping)
    return storage


def _mapping_load(ordinary: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(ordinary)
    def load(f: Any, *arguments: Any, **options: Any) -> Any:
        if (
            options.get("mmap") is None
            and options.get("weights_only") is not False
            and isinstance(f, str | os.PathLike)
            and zipfile.is_zipfile(f)  # the only format that torch can map
        ):
            options["mmap"] = True
        return ordinary(f, *arguments, **options)

    return load


def _adopting_load(ordinary: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(ordinary)
    def load_state_dict(
        self: torch.nn.Module, state_dict: Mapping[str, Any], *arguments: Any, **options: Any
    ) -> Any:
        loaded = ordinary(self, state_dict, *arguments, **options)
        _adopt(self, state_dict)
        return loaded

    return load_state_dict


def _adopt(module: torch.nn.Module, state_dict: Mapping[str, Any]) -> None:
    """Move a module's tensors back to the store's memory that they were copied from.

    This holds for tensors of equal content, each of which has a storage to itself. The tensors stay
    the same objects, so tied ones stay tied.
    """
    own = {
        name: tensor
        for named in (module.named_parameters, module.named_buffers)
        for name, tensor in named(remove_duplicate=False)
        if type(tensor) in (torch.Tensor, torch.nn.Parameter) and _on_host(tensor)
    }
    uses = Counter(
        tensor.data_ptr() for tensor in {id(each): each for each in own.values()}.values()
    )
    freed = False
    for name, tensor in own.items():
        source = state_dict.get(name)
        if (
            isinstance(source, torch.Tensor)
            and _in_store(source)
            and not _in_store(tensor)
            and uses[tensor.data_ptr()] == 1
            and tensor.nbytes == tensor.untyped_storage().nbytes()
            and (tensor.dtype, tensor.stride()) == (source.dtype, source.stride())
            and torch.equal(tensor, source)
        ):
            tensor.data = source.detach()
            freed = True
    # Return the copies' memory to the system; a C library without this does so by itself.
    if freed and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)


def _on_host(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.layout is torch.strided


def _in_store(tensor: torch.Tensor) -> bool:
    if not _on_host(tensor):
        return False
    place = tensor.data_ptr()
    return any(each.begin <= place < each.begin + len(each) for each in list(_mappings))
