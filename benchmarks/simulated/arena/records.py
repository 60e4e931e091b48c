"""Outcomes of finished runs in a file, so that a comparison that was stopped can be resumed."""

import json
from collections.abc import Iterator, MutableMapping
from dataclasses import asdict
from pathlib import Path

from autoscaler.simulator.arena import Outcome

Key = tuple[str, str]


class Records(MutableMapping[Key, Outcome]):
    """Outcomes by load and autoscaler, appended to a file of JSON lines as they come.

    Parameters
    ----------
    path : Path or None
        None keeps them in memory only.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[Key, Outcome] = {}
        for line in _whole_lines(path) if path and path.exists() else []:
            content = json.loads(line)
            load = content.pop("load")
            self._known[load, content["name"]] = Outcome(**content)

    def __getitem__(self, key: Key) -> Outcome:
        return self._known[key]

    def __setitem__(self, key: Key, outcome: Outcome) -> None:
        self._known[key] = outcome
        if self._path:
            with self._path.open("a") as file:
                file.write(json.dumps({"load": key[0], **asdict(outcome)}) + "\n")

    def __delitem__(self, key: Key) -> None:
        raise TypeError("records are kept")

    def __iter__(self) -> Iterator[Key]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


def _whole_lines(path: Path) -> list[str]:
    """Return the lines of a file, and cut off one that a run had no time to end."""
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole)
    return whole.splitlines()
