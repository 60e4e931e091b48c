"""The space of one tier: its blobs, and which of them may be evicted.

A blob in use is never evicted (Dakkak et al., TrIMS, 2018, section 4.1.2).
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from deployments.modelstore.names import Blob, Manifest


@dataclass
class Entry:
    """A blob in a tier. Its room is reserved when the copy into the tier is ordered."""

    #: Whether all of its bytes are there.
    resident: bool = False
    #: Holders, and opens that wait, which need it in this tier.
    references: int = 0
    #: Copies to a tier above that read it, or are queued to.
    reads: int = 0
    #: Number of the open that used it last.
    last_use: int = 0

    @property
    def idle(self) -> bool:
        return self.resident and not self.references and not self.reads


class TierSpace:
    """The blobs of a tier within a budget; each takes a whole number of pages."""

    def __init__(self, budget_bytes: int, page_bytes: int = 1) -> None:
        self.budget_bytes, self._page_bytes = budget_bytes, page_bytes
        self.used_bytes = 0
        #: Kept free for the memory that holders compute in.
        self.kept_free_bytes = 0
        self.entries: dict[Blob, Entry] = {}

    def holds(self, manifest: Manifest) -> bool:
        """Return whether a whole model is here."""
        return all(blob in self.entries and self.entries[blob].resident for blob in manifest.blobs)

    def resident_bytes(self, manifest: Manifest) -> int:
        entries = ((blob, self.entries.get(blob)) for blob in manifest.blobs)
        return sum(blob.size_bytes for blob, entry in entries if entry and entry.resident)

    def room_bytes(self, blobs: Iterable[Blob]) -> int:
        return sum(-(-blob.size_bytes // self._page_bytes) * self._page_bytes for blob in blobs)

    def add(self, blob: Blob) -> None:
        self.entries[blob] = Entry()
        self.used_bytes += self.room_bytes([blob])

    def remove(self, blob: Blob) -> None:
        del self.entries[blob]
        self.used_bytes -= self.room_bytes([blob])

    def missing(self, blobs: Iterable[Blob]) -> list[Blob]:
        return [blob for blob in blobs if blob not in self.entries]

    def idle(self, keep: Collection[Blob] = ()) -> list[Blob]:
        """Return the blobs that may be evicted, but for `keep`; the least recently used first."""
        idle = [blob for blob, entry in self.entries.items() if entry.idle and blob not in keep]
        return sorted(idle, key=lambda blob: self.entries[blob].last_use)

    def unsettled(self) -> bool:
        """Return whether a copy into or out of this tier is running or queued."""
        return any(not entry.resident or entry.reads for entry in self.entries.values())

    def victims(self, needed_bytes: int, keep: Collection[Blob]) -> list[Blob] | None:
        """Return the idle blobs to evict for `needed_bytes`, but for `keep`; None: too few.

        The least recently used leave first.
        """
        excess = self.used_bytes + self.kept_free_bytes + needed_bytes - self.budget_bytes
        if excess <= 0:
            return []
        idle = self.idle(keep)
        if self.room_bytes(idle) < excess:
            return None
        chosen = []
        for blob in idle:
            if excess <= 0:
                break
            chosen.append(blob)
            excess -= self.room_bytes([blob])
        return chosen
