"""The store that the autoscaler keeps its state in; `autoscaler.ray.store` implements it."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol


class Store(Protocol):
    """Storage for bytes that outlives this process. Every method returns at once."""

    def load(self, key: str) -> "Future[bytes | None]":
        """Read what was saved under `key`; None if there is nothing, or if it cannot be read."""

    def save(self, key: str, content: Callable[[], bytes]) -> "Future[None]":
        """Save what `content` returns under `key`; it is called in another thread."""

    def delete(self, key: str) -> None:
        """Delete what was saved under `key`."""
