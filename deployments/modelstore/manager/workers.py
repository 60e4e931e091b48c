"""Threads for blocking work. Each result or failure is reported as an event."""

import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

_Event = TypeVar("_Event")


class Workers(Generic[_Event]):
    """Threads for one kind of blocking work.

    They are daemons: threads of `ThreadPoolExecutor` would keep the process alive while they block.

    Parameters
    ----------
    name : str
    limit : int
        Threads at most. Each is started when there is work for it.
    report : callable
        Called with each event, in the thread that did the work.
    """

    def __init__(self, name: str, limit: int, report: Callable[[_Event], None]) -> None:
        self._name, self._limit, self._report = name, limit, report
        self._todo: queue.SimpleQueue[
            tuple[Callable[[], _Event], Callable[[Exception], _Event]] | None
        ] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._stopped = threading.Event()

    def submit(self, work: Callable[[], _Event], failed: Callable[[Exception], _Event]) -> None:
        """Run `work` and report its event, or the event that `failed` makes of its error."""
        if len(self._threads) < self._limit:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the machine cannot start another thread
                if not self._threads:
                    self._report(failed(error))
                    return
            else:
                self._threads.append(thread)
        self._todo.put((work, failed))

    def stop(self) -> None:
        """Start no further work."""
        self._stopped.set()
        for _ in self._threads:
            self._todo.put(None)

    def join(self, end_s: float | None = None) -> None:
        """Wait, after `stop`, until running work ends or `time.monotonic()` reaches `end_s`."""
        for thread in self._threads:
            thread.join(None if end_s is None else max(0.0, end_s - time.monotonic()))

    def _run(self) -> None:
        while (todo := self._todo.get()) is not None:
            if self._stopped.is_set():
                continue
            work, failed = todo
            try:
                event = work()
            except Exception as error:
                event = failed(error)
            self._report(event)
