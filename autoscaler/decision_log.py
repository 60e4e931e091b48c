"""The last hundred decisions for one deployment."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from autoscaler.decision import Decision

#: The number of entries that are kept.
DECISIONS_KEPT = 100
#: A decision for the same number of replicas is recorded again after this long.
RECORD_AGAIN_AFTER_S = 60.0

Entry = Mapping[str, Any]


class DecisionLog:
    """The newest decision, and the latest recorded ones.

    A decision is recorded if its number of replicas or of standbys differs from that of the last
    recorded one, or if that one is a minute old.

    Parameters
    ----------
    entries : iterable of mapping, optional
        Entries of an earlier log, oldest first; incomplete ones are dropped.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        usable = (entry for entry in entries if {"time_s", "replicas"} <= entry.keys())
        self._recorded: deque[Entry] = deque(usable, maxlen=DECISIONS_KEPT)
        self._newest: Entry | None = self._recorded[-1] if self._recorded else None

    @property
    def newest(self) -> Entry | None:
        """The decision in force, recorded or not; None before the first."""
        return self._newest

    @property
    def recorded(self) -> list[Entry]:
        """The recorded decisions, oldest first, as plain dicts ready for JSON."""
        return list(self._recorded)

    def add(self, time_s: float, target_replicas: int, decision: Decision) -> bool:
        """Add a decision.

        Parameters
        ----------
        time_s : float
            When it was made.
        target_replicas : int
            Replicas that were ordered until then, without standbys.
        decision : Decision

        Returns
        -------
        bool
            Whether it was recorded.
        """
        # Its fields are plain values, so `asdict`, which copies deeply, would only take longer.
        entry = {"time_s": time_s, "target_replicas": target_replicas, **vars(decision)}
        self._newest = entry
        if self._recorded:
            last = self._recorded[-1]
            # If the clock was set back, the last one counts as old, too.
            is_recent = 0 <= time_s - last["time_s"] < RECORD_AGAIN_AFTER_S
            is_repeated = (
                last["replicas"] == decision.replicas
                and last.get("standbys", 0) == decision.standbys
            )
            if is_recent and is_repeated:
                return False
        self._recorded.append(entry)
        return True
