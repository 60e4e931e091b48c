"""Copies of blobs up the tiers: one per blob and tier, however many opens wait for it.

A fill reads the nearest lower tier that has the blob. It also fills the tiers in between that have
room, and skips those that are full or fail.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from deployments.modelstore.core.actions import Action, Copy, Drop, Fault, Tier
from deployments.modelstore.core.tier_space import TierSpace
from deployments.modelstore.names import Blob, Manifest


class Transfers:
    """The tiers' entries and the copies between them; orders to the driver go to `actions`."""

    def __init__(
        self,
        budgets_bytes: Mapping[Tier, int],
        page_bytes: Mapping[Tier, int],
        actions: list[Action],
    ) -> None:
        self.spaces = {
            tier: TierSpace(budgets_bytes[tier], page_bytes.get(tier, 1))
            for tier in sorted(budgets_bytes)
        }
        self.hits, self.misses, self.evictions = Counter[Tier](), Counter[Tier](), Counter[Tier]()
        self.copied_bytes = Counter[tuple[Tier, Tier]]()
        self.copied_s: defaultdict[tuple[Tier, Tier], float] = defaultdict(float)
        self._actions = actions
        # The source of each blob's copy into a tier, which waits while that is filled itself.
        self._fills: dict[tuple[Blob, Tier], Tier] = {}
        self._bypassed: set[tuple[Blob, Tier]] = set()
        #: Blobs that are not kept on the disk.
        self.memory_only: set[Blob] = set()

    def count_hit(self, tier: Tier, manifest: Manifest) -> Tier:
        """Count hits and misses from this tier down; return the fastest tier that has the model."""
        for below, space in self.spaces.items():
            if below < tier:
                continue
            if space.holds(manifest):
                self.hits[below] += 1
                return below
            self.misses[below] += 1
        return Tier.REMOTE

    def reserve(
        self,
        tier: Tier,
        blobs: Iterable[Blob],
        keep: Collection[Blob] = (),
        kept_free_bytes: int = 0,
    ) -> bool:
        """Reserve room for new blobs, and keep more free, evicting idle ones; return if it fits."""
        space, new = self.spaces[tier], list(blobs)
        victims = space.victims(space.room_bytes(new) + kept_free_bytes, keep)
        if victims is None:
            return False
        space.kept_free_bytes += kept_free_bytes
        for blob in victims:
            self.evict(blob, tier)
        for blob in new:
            space.add(blob)
        return True

    def keep_free(self, tier: Tier, more_bytes: int) -> None:
        """Change what a tier keeps free, and evict for it what it can."""
        space = self.spaces[tier]
        space.kept_free_bytes += more_bytes
        victims = space.victims(0, ())
        for blob in space.idle() if victims is None else victims:
            self.evict(blob, tier)

    def copy_s(self, size_bytes: int) -> dict[Tier, float]:
        """Return the time that so many bytes take from each tier, at the measured bandwidths."""
        moved: dict[Tier, tuple[int, float]] = {}
        for (source, target), copied_bytes in self.copied_bytes.items():
            total_bytes, total_s = moved.get(source, (0, 0.0))
            moved[source] = total_bytes + copied_bytes, total_s + self.copied_s[source, target]
        return {
            source: size_bytes * total_s / total_bytes
            for source, (total_bytes, total_s) in moved.items()
        }

    def evict(self, blob: Blob, tier: Tier) -> None:
        """Remove an idle blob from a tier."""
        self.evictions[tier] += 1
        self.spaces[tier].remove(blob)
        self._actions.append(Drop(blob, tier))

    def fill(self, blob: Blob, tier: Tier) -> None:
        """Copy a blob into a tier where it has an entry."""
        for below, space in self.spaces.items():
            if below <= tier or (blob, below) in self._bypassed:
                continue
            if below is Tier.DISK and blob in self.memory_only and blob not in space.entries:
                continue
            if blob not in space.entries and self.reserve(below, [blob]):
                self.fill(blob, below)
            entry = space.entries.get(blob)
            if entry is None:
                continue
            if entry.resident:
                entry.reads += 1
                self._order(blob, below, tier)
            else:
                self._fills[blob, tier] = below
            return
        self._order(blob, Tier.REMOTE, tier)

    def fill_all(self, blobs: Iterable[Blob], tier: Tier) -> None:
        """Copy blobs into a tier, first those in a lower tier, so that they stay there."""
        below = [space.entries for at, space in self.spaces.items() if at > tier]
        for blob in sorted(blobs, key=lambda blob: all(blob not in entries for entries in below)):
            self.fill(blob, tier)

    def copied(self, blob: Blob, tier: Tier, seconds: float) -> None:
        """Record a finished copy and start the fills that waited for it."""
        link = (self._finish(blob, tier), tier)
        self.copied_bytes[link] += blob.size_bytes
        self.copied_s[link] += seconds
        self.spaces[tier].entries[blob].resident = True
        for above in self._waiters(blob, tier):
            self.fill(blob, above)
        if not any((blob, other) in self._fills for other in self.spaces):
            self._forget_faults(blob)

    def failed(self, blob: Blob, tier: Tier, fault: Fault) -> list[Tier]:
        """Record a failed copy. Return the tiers that the blob can no longer be copied to."""
        source = self._finish(blob, tier)
        if fault is Fault.SOURCE and source is Tier.DISK:
            self._refill(blob, tier)
            return []
        if fault is Fault.TARGET:
            return self._leave_out(blob, tier)
        return self._give_up(blob, tier)

    def describe(self) -> dict[str, Any]:
        """Return each tier's size and counters, and the copies between tiers since the start."""
        return {
            "tiers": {
                tier.name.lower(): {
                    "budget_bytes": space.budget_bytes,
                    "used_bytes": space.used_bytes,
                    "kept_free_bytes": space.kept_free_bytes,
                    "blobs": len(space.entries),
                    "hits": self.hits[tier],
                    "misses": self.misses[tier],
                    "evictions": self.evictions[tier],
                }
                for tier, space in self.spaces.items()
            },
            "copies": [
                {
                    "source": source.name.lower(),
                    "target": target.name.lower(),
                    "bytes": size_bytes,
                    "seconds": self.copied_s[source, target],
                }
                for (source, target), size_bytes in sorted(self.copied_bytes.items())
            ],
        }

    def _order(self, blob: Blob, source: Tier, target: Tier) -> None:
        self._fills[blob, target] = source
        self._actions.append(Copy(blob, source, target))

    def _finish(self, blob: Blob, tier: Tier) -> Tier:
        source = self._fills.pop((blob, tier))
        if source in self.spaces:
            self.spaces[source].entries[blob].reads -= 1
        return source

    def _waiters(self, blob: Blob, tier: Tier) -> list[Tier]:
        """Return the tiers whose fills wait for this tier's copy of the blob."""
        return [above for above in self.spaces if self._fills.get((blob, above)) == tier]

    def _refill(self, blob: Blob, tier: Tier) -> None:
        """Bypass the disk, whose copy of the blob was corrupt; the driver has deleted it."""
        entry = self.spaces[Tier.DISK].entries.get(blob)
        if entry is not None and not entry.reads:
            self.spaces[Tier.DISK].remove(blob)
        self._bypassed.add((blob, Tier.DISK))
        self.fill(blob, tier)

    def _leave_out(self, blob: Blob, tier: Tier) -> list[Tier]:
        """Skip a tier that cannot take the blob; refuse opens that need it there."""
        self._bypassed.add((blob, tier))
        waiters = self._waiters(blob, tier)
        self.spaces[tier].remove(blob)
        for above in waiters:
            self.fill(blob, above)
        if not waiters:
            self._forget_faults(blob)
        return [tier]

    def _give_up(self, blob: Blob, tier: Tier) -> list[Tier]:
        failed = [tier]
        self.spaces[tier].remove(blob)
        for above in self._waiters(blob, tier):
            del self._fills[blob, above]
            failed += self._give_up(blob, above)
        self._forget_faults(blob)
        return failed

    def _forget_faults(self, blob: Blob) -> None:
        self._bypassed -= {(blob, tier) for tier in self.spaces}
