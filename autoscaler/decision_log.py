"""What was decided lately, and why: the last hundred decisions of one deployment."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from autoscaler.decision import Decision

#: Decisions that are kept.
DECISIONS_KEPT = 100
#: A decision like the one before is noted again after this long.
NOTED_AGAIN_AFTER_S = 60.0

Entry = Mapping[str, Any]


class DecisionLog:
    """The newest decision, and of those before it each that decided otherwise than the last noted.

    Parameters
    ----------
    entries : iterable of mapping, optional
        Entries of an earlier log, oldest first.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        usable = (entry for entry in entries if {"time_s", "replicas"} <= entry.keys())
        self._noted: deque[Entry] = deque(usable, maxlen=DECISIONS_KEPT)
        self._newest: Entry | None = self._noted[-1] if self._noted else None

    @property
    def newest(self) -> Entry | None:
        """The decision in force, whether noted or not; None before the first."""
        return self._newest

    @property
    def noted(self) -> list[Entry]:
        """The decisions noted, oldest first, as plain tables that JSON can hold."""
        return list(self._noted)

    def add(self, time_s: float, target_replicas: int, decision: Decision) -> bool:
        """Take in a decision.

        Parameters
        ----------
        time_s : float
            When it was made.
        target_replicas : int
            How many replicas were ordered until then.
        decision : Decision

        Returns
        -------
        bool
            Whether it is noted: it decides otherwise than the last one noted, or that is old.
        """
        entry = {"time_s": time_s, "target_replicas": target_replicas, **asdict(decision)}
        self._newest = entry
        if self._noted:
            last = self._noted[-1]
            # A clock that was set back makes the last one old, too.
            new = 0 <= time_s - last["time_s"] < NOTED_AGAIN_AFTER_S
            if new and last["replicas"] == decision.replicas:
                return False
        self._noted.append(entry)
        return True
