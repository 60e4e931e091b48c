"""A store for the autoscaler's state in tests."""

from collections.abc import Callable
from concurrent.futures import Future


class Store:
    """A store in memory. If it is slow, it completes what it was asked only on `answer`."""

    def __init__(self, slow: bool = False) -> None:
        self.kept: dict[str, bytes] = {}
        self.slow = slow
        self.saves = 0
        self.loaded: list[str] = []
        self._pending_loads: list[tuple[Future[bytes | None], bytes | None]] = []
        self._pending_saves: list[Future[None]] = []

    def load(self, key: str) -> Future[bytes | None]:
        self.loaded.append(key)
        loaded: Future[bytes | None] = Future()
        if self.slow:
            self._pending_loads.append((loaded, self.kept.get(key)))
        else:
            loaded.set_result(self.kept.get(key))
        return loaded

    def save(self, key: str, content: Callable[[], bytes]) -> Future[None]:
        self.saves += 1
        self.kept[key] = content()
        saved: Future[None] = Future()
        if self.slow:
            self._pending_saves.append(saved)
        else:
            saved.set_result(None)
        return saved

    def delete(self, key: str) -> None:
        self.kept.pop(key, None)

    def answer(self) -> None:
        for loaded, content in self._pending_loads:
            loaded.set_result(content)
        for saved in self._pending_saves:
            saved.set_result(None)
        self._pending_loads, self._pending_saves = [], []
