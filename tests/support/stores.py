"""A store of the autoscaler's history for tests."""

from concurrent.futures import Future


class Store:
    """Keeps in memory; answers when it is told to."""

    def __init__(self, slow: bool = False) -> None:
        self.kept: dict[str, bytes] = {}
        self.slow = slow
        self.saves = 0
        self._late: list[tuple[Future[bytes | None], bytes | None]] = []
        self._late_saves: list[Future[None]] = []

    def load(self, key: str) -> Future[bytes | None]:
        loaded: Future[bytes | None] = Future()
        if self.slow:
            self._late.append((loaded, self.kept.get(key)))
        else:
            loaded.set_result(self.kept.get(key))
        return loaded

    def save(self, key: str, content: bytes) -> Future[None]:
        self.saves += 1
        self.kept[key] = content
        saved: Future[None] = Future()
        if self.slow:
            self._late_saves.append(saved)
        else:
            saved.set_result(None)
        return saved

    def delete(self, key: str) -> None:
        self.kept.pop(key, None)

    def answer(self) -> None:
        for loaded, content in self._late:
            loaded.set_result(content)
        for saved in self._late_saves:
            saved.set_result(None)
        self._late, self._late_saves = [], []
