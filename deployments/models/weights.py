"""Sources of a model's weights: a safetensors file, or this machine's model store."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from deployments.models.startup_timings import StartupTimings
from deployments.modelstore.client import ask
from deployments.modelstore.names import STORE_PREFIX
from policy.errors import InvalidInputError

if TYPE_CHECKING:
    import torch


class WeightsLoader:
    """The loader that `Model.load` may request: it maps a source of weights to tensors.

    The `configured` source replaces the one that the model requests. `socket_path` is that of the
    model store's manager, by default of this user's. `found_in` says where the weights were:
    ``file``, or the tier of the store: ``device``, ``host``, ``disk``, ``remote``.
    """

    def __init__(
        self,
        configured: str | None = None,
        socket_path: Path | None = None,
        split: StartupTimings | None = None,
    ) -> None:
        self._configured, self._socket_path = configured, socket_path
        self._split = split or StartupTimings()
        self._asked_for: str | None = None
        self.source: str | None = None
        self.found_in: str | None = None

    def __call__(
        self, source: str | Path, device: "str | torch.device" = "cpu"
    ) -> "dict[str, torch.Tensor]":
        """Load a model's tensors.

        The source is a safetensors file, or ``store://[framework/]name[@version]`` for a model of
        the store, whose memory is shared with all processes of this machine that load it from
        there. On a GPU whose memory is a tier of the store they are shared, too; they must not be
        written to there.

        The tensors are for ``load_state_dict(assign=True)`` of a module made on the meta device,
        which copies nothing.

        Raises
        ------
        FileNotFoundError
            There is no such file.
        InvalidInputError
            The config names one source, and the model requests a second.
        deployments.modelstore.errors.StoreError
            The store refused the model, or there is no store.
        """
        if self._configured is not None:
            if self._asked_for not in (None, str(source)):
                raise InvalidInputError(
                    f"weights: {self._configured!r} cannot replace both {self._asked_for!r} and "
                    f"{str(source)!r}; name the model's sources in its options instead"
                )
            self._asked_for = str(source)
            source = self._configured
        self.source = str(source)
        with self._split.phase("imports"):
            from safetensors.torch import load_file  # here, because models need not use torch
        with self._split.phase("weights"):
            if self.source.startswith(STORE_PREFIX):
                name = self.source.removeprefix(STORE_PREFIX)
                from deployments.modelstore.tensors import attach  # imports torch

                tensors, self.found_in = attach(name, socket_path=self._socket_path, device=device)
                return tensors
            self.found_in = "file"
            return load_file(source, device=str(device))

    @contextmanager
    def computing(self, device: str) -> Iterator[None]:
        """Report to the store the memory that the block allocates on a GPU; it is kept free."""
        if device == "cpu" or self.source is None or not self.source.startswith(STORE_PREFIX):
            yield
            return
        import torch

        torch.cuda.reset_peak_memory_stats()
        yield
        used_bytes = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
        name = self.source.removeprefix(STORE_PREFIX)
        ask("uses", name, self._socket_path, bytes=used_bytes)

    @contextmanager
    def sharing(self, share: bool) -> Iterator[None]:
        """With `share`, load weights from the store, whatever code in the block asks for them.

        Raises
        ------
        InvalidInputError
            The code loaded no file that can be shared.
        deployments.modelstore.errors.StoreError
            There is no store.
        """
        if not share:
            yield
            return
        with self._split.phase("imports"):
            from deployments.modelstore.sharing import shared_weights  # imports torch
        with shared_weights(self._socket_path) as sharing:
            yield
        if sharing.file is None:
            raise InvalidInputError(
                "share: the model loads no weights with safetensors or torch, so it cannot share "
                "any; leave the setting out"
            )
        self.source, self.found_in = sharing.file, sharing.found_in


def load_weights(
    source: str | Path, device: "str | torch.device" = "cpu"
) -> "dict[str, torch.Tensor]":
    """Load a model's tensors, like a `WeightsLoader` without a configured source."""
    return WeightsLoader()(source, device)
