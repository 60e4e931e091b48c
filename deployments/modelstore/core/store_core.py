"""The model resource manager as a state machine: events in, actions out.

It uses no clock, socket, thread, torch or Ray. A driver (`deployments.modelstore.manager.manager`)
reports events and carries out the actions that each returns. Source: Dakkak et al., TrIMS, 2018,
section 4.1.
"""

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from deployments.modelstore.core.actions import Action, Drop, Fault, Granted, Refused, Resolve, Tier
from deployments.modelstore.core.transfers import Transfers
from deployments.modelstore.errors import InUseError, StoreError, StoreFullError, UnknownModelError
from deployments.modelstore.names import Blob, Manifest, ModelName, Origin
from policy.errors import InvalidInputError


@dataclass(frozen=True)
class Open:
    """A holder's model. It was in `source` when its room was reserved."""

    name: ModelName
    tier: Tier
    #: Whether it is to be refused if a copy of one's own is faster.
    if_faster: bool = False
    source: Tier = Tier.REMOTE


class StoreCore:
    """Models, their holders, and the tiers of their blobs.

    A holder is one connection. It opens one model, and releases everything when it disconnects. A
    tier without a budget does not exist.
    """

    def __init__(
        self,
        budgets_bytes: Mapping[Tier, int],
        page_bytes: Mapping[Tier, int] | None = None,
    ) -> None:
        self._actions: list[Action] = []
        self._transfers = Transfers(budgets_bytes, page_bytes or {}, self._actions)
        self._spaces = self._transfers.spaces
        self._manifests: dict[ModelName, Manifest] = {}
        self._shared: dict[ModelName, Blob] = {}
        self._resolving: set[ModelName] = set()
        self._opens: dict[Hashable, Open] = {}
        # Opens without references on their model's blobs, in order of arrival.
        self._unplaced: dict[Hashable, None] = {}
        # Granted opens.
        self._leases: dict[Hashable, Open] = {}
        # The memory that a process computes in, without the weights, and the least time that
        # attaching took, for each blob.
        self._activation_bytes: Counter[ModelName] = Counter()
        self._attach_s: dict[Tier, float] = {}
        self._open_number = 0
        self._counts: Counter[str] = Counter()

    def open(
        self,
        holder: Hashable,
        name: ModelName,
        tier: Tier = Tier.HOST,
        *,
        if_faster: bool = False,
    ) -> list[Action]:
        """Open a model in device or host memory; optionally only if a copy takes longer.

        The holder is granted the model or refused exactly once, now or after a later event.
        """
        if holder in self._opens or holder in self._leases:
            raise InvalidInputError("this connection has opened a model already")
        self._counts["opens"] += 1
        self._opens[holder] = Open(name, tier, if_faster)
        self._unplaced[holder] = None
        if name in self._manifests:
            return self._advance()
        if name not in self._resolving:
            self._resolving.add(name)
            self._actions.append(Resolve(name))
        return self._taken()

    def disconnect(self, holder: Hashable) -> list[Action]:
        """Release everything of a holder that closed its model or died."""
        placed = holder not in self._unplaced
        self._unplaced.pop(holder, None)
        gone = self._opens.pop(holder, None) or self._leases.pop(holder, None)
        if gone is not None and placed:
            self._release(gone)
        return self._advance()

    def share(self, name: ModelName, manifest: Manifest) -> None:
        """Record a file that a client is about to open.

        Its source is on this machine, so it skips the disk tier, and is forgotten once it has left
        memory.
        """
        self._manifests[name] = manifest
        for blob in manifest.blobs:
            self._shared[name] = blob
            self._transfers.memory_only.add(blob)

    def found(self, blob: Blob, tier: Tier) -> list[Action]:
        """Restore a blob from an earlier run, or drop it if it does not fit the budget."""
        if self._transfers.reserve(tier, [blob]):
            self._spaces[tier].entries[blob].resident = True
        else:
            self._actions.append(Drop(blob, tier))
        return self._taken()

    def origins(self, blob: Blob) -> list[Origin]:
        """Return the remote locations of a blob, those of waiting opens first."""
        awaited = {waiting.name for waiting in self._opens.values()}
        found = [
            (name, file)
            for name, manifest in self._manifests.items()
            for file, content in manifest.files
            if content == blob
        ]
        return sorted(found, key=lambda origin: origin[0] not in awaited)

    def resolved(self, name: ModelName, manifest: Manifest) -> list[Action]:
        """Record a model's files, as looked up now or in an earlier run."""
        self._resolving.discard(name)
        self._manifests[name] = manifest
        return self._advance()

    def resolve_failed(self, name: ModelName, error: StoreError) -> list[Action]:
        """Refuse all opens of a model whose files could not be looked up."""
        self._resolving.discard(name)
        for holder in [held for held, waiting in self._opens.items() if waiting.name == name]:
            self._refuse(holder, error)
        return self._advance()

    def attached(self, holder: Hashable, seconds: float) -> None:
        """Record for how long a holder waited for a model that was in the tier, and mapped it."""
        lease = self._leases.get(holder)
        if lease is not None:
            each_s = seconds / len(self._manifests[lease.name].blobs)
            self._attach_s[lease.tier] = min(each_s, self._attach_s.get(lease.tier, each_s))

    def uses(self, name: ModelName, activation_bytes: int) -> list[Action]:
        """Keep device memory free for what each process computes with a model, as one measured."""
        more_bytes = activation_bytes - self._activation_bytes[name]
        if more_bytes > 0 and Tier.DEVICE in self._spaces:
            self._activation_bytes[name] = activation_bytes
            users = list(self._leases.values())
            users += [o for holder, o in self._opens.items() if holder not in self._unplaced]
            on_device = [each.name == name and each.tier is Tier.DEVICE for each in users]
            self._transfers.keep_free(Tier.DEVICE, sum(on_device) * more_bytes)
        return self._advance()

    def copied(self, blob: Blob, tier: Tier, seconds: float = 0.0) -> list[Action]:
        """Record a finished copy and its duration."""
        self._transfers.copied(blob, tier, seconds)
        for holder in list(self._opens):
            self._grant_if_complete(holder)
        return self._advance()

    def copy_failed(self, blob: Blob, tier: Tier, fault: Fault, error: StoreError) -> list[Action]:
        for failed in self._transfers.failed(blob, tier, fault):
            self._refuse_waiting(blob, failed, error)
        return self._advance()

    def evict(self, name: ModelName, *, disk: bool = False) -> list[Action]:
        """Drop a model from memory and, optionally, from the disk.

        Blobs in use by other models stay. The list of its files is dropped, too, so the next open
        reads it from the remote. `InUseError` if somebody holds it or waits for it.
        """
        names = {lease.name for lease in self._leases.values()}
        if name in names or name in {waiting.name for waiting in self._opens.values()}:
            raise InUseError(f"{name}: in use")
        if name not in self._manifests:
            raise UnknownModelError(f"{name}: not in the store")
        for blob in self._manifests.pop(name).blobs:
            for tier, space in self._spaces.items():
                entry = space.entries.get(blob)
                if entry is not None and entry.idle and (disk or tier <= Tier.HOST):
                    self._transfers.evict(blob, tier)
        return self._advance()

    def models(self) -> list[dict[str, Any]]:
        """Return each known model: its name, bytes, resident bytes per tier, and holders."""
        held = Counter(lease.name for lease in self._leases.values())
        return [
            {
                "name": str(name),
                "files": len(manifest.files),
                "bytes": manifest.size_bytes,
                **{
                    f"{tier.name.lower()}_bytes": space.resident_bytes(manifest)
                    for tier, space in self._spaces.items()
                },
                "leases": held[name],
                **self._times(manifest),
            }
            for name, manifest in sorted(self._manifests.items())
        ]

    def _times(self, manifest: Manifest) -> dict[str, Any]:
        """Return how long a model takes to attach, and to copy from each tier, where measured."""
        attach_s = {
            tier: each_s * len(manifest.blobs) for tier, each_s in sorted(self._attach_s.items())
        }
        return {
            f"{what}_ms": {tier.name.lower(): 1e3 * time_s for tier, time_s in times_s.items()}
            for what, times_s in (
                ("attach", attach_s),
                ("copy", self._transfers.copy_s(manifest.size_bytes)),
            )
        }

    def stats(self) -> dict[str, Any]:
        """Return the counters, in total and per tier."""
        counts = {name: self._counts[name] for name in ("opens", "granted", "refused")}
        now = {"waiting": len(self._opens), "leases": len(self._leases)}
        return counts | now | self._transfers.describe()

    def _taken(self) -> list[Action]:
        if self._shared:
            self._forget_shared()
        taken = self._actions.copy()
        self._actions.clear()
        return taken

    def _forget_shared(self) -> None:
        awaited = {waiting.name for waiting in self._opens.values()}
        for name, blob in list(self._shared.items()):
            if name not in awaited and not any(blob in s.entries for s in self._spaces.values()):
                del self._shared[name]
                self._manifests.pop(name, None)
                self._transfers.memory_only.discard(blob)

    def _advance(self) -> list[Action]:
        """Place waiting opens that fit, first come first served in each tier."""
        blocked: set[Tier] = set()
        for holder in list(self._unplaced):
            waiting = self._opens[holder]
            manifest = self._manifests.get(waiting.name)
            if manifest is None:
                continue
            new = self._spaces[waiting.tier].missing(manifest.blobs)
            if new and waiting.tier in blocked:
                continue
            if self._place(holder, waiting, manifest, new):
                self._grant_if_complete(holder)
            else:
                blocked.add(waiting.tier)
        return self._taken()

    def _grant_if_complete(self, holder: Hashable) -> None:
        waiting = self._opens.get(holder)
        if waiting is None or holder in self._unplaced:
            return
        manifest = self._manifests[waiting.name]
        if self._spaces[waiting.tier].holds(manifest):
            del self._opens[holder]
            self._leases[holder] = waiting
            self._counts["granted"] += 1
            self._actions.append(
                Granted(holder, waiting.name, waiting.tier, manifest, waiting.source)
            )

    def _place(self, holder: Hashable, waiting: Open, manifest: Manifest, new: list[Blob]) -> bool:
        """Reserve room for a model and order missing blobs; return False if it must wait."""
        space = self._spaces[waiting.tier]
        if waiting.if_faster and (reason := self._not_worth_sharing(manifest)):
            self._refuse(holder, StoreError(reason))
            return True
        kept_free_bytes = self._kept_free_bytes(waiting.tier, waiting.name)
        if not self._transfers.reserve(waiting.tier, new, set(manifest.blobs), kept_free_bytes):
            fits_ever = space.room_bytes(manifest.blobs) + kept_free_bytes <= space.budget_bytes
            if fits_ever and space.unsettled():
                return False
            needed_bytes = space.room_bytes(new) + kept_free_bytes
            self._refuse(
                holder,
                StoreFullError(
                    f"{waiting.name}: needs {needed_bytes} bytes of the "
                    f"{waiting.tier.name.lower()} tier's {space.budget_bytes}, and what is in use "
                    "there leaves too few"
                ),
            )
            return True
        del self._unplaced[holder]
        self._open_number += 1
        for blob in manifest.blobs:
            entry = space.entries[blob]
            entry.references += 1
            entry.last_use = self._open_number
        self._opens[holder] = replace(
            waiting, source=self._transfers.count_hit(waiting.tier, manifest)
        )
        self._transfers.fill_all(new, waiting.tier)
        return True

    def _not_worth_sharing(self, manifest: Manifest) -> str | None:
        """Return why a copy of one's own on the device is faster than attaching, if it is.

        Dakkak et al., TrIMS, 2018, section 5.2: what is shared n times costs n times the exchange
        of a handle, and saves the bytes over the bandwidth.
        """
        attach_s = self._attach_s.get(Tier.DEVICE, 0.0) * len(manifest.blobs)
        copy_s = self._transfers.copy_s(manifest.size_bytes).get(Tier.HOST, attach_s)
        if copy_s >= attach_s:
            return None
        return f"attaching takes {1e3 * attach_s:.3g} ms, a copy {1e3 * copy_s:.3g} ms"

    def _refuse(self, holder: Hashable, error: StoreError) -> None:
        self._opens.pop(holder, None)
        self._unplaced.pop(holder, None)
        self._counts["refused"] += 1
        self._actions.append(Refused(holder, error))

    def _refuse_waiting(self, blob: Blob, tier: Tier, error: StoreError) -> None:
        """Refuse all opens that wait for a blob whose copy failed; its entry is already removed."""
        for holder, waiting in list(self._opens.items()):
            manifest = self._manifests.get(waiting.name)
            if manifest is None or holder in self._unplaced or waiting.tier != tier:
                continue
            if blob in manifest.blobs:
                self._refuse(holder, error)
                self._release(waiting, without=blob)

    def _kept_free_bytes(self, tier: Tier, name: ModelName) -> int:
        return self._activation_bytes[name] if tier is Tier.DEVICE else 0

    def _release(self, gone: Open, without: Blob | None = None) -> None:
        for blob in self._manifests[gone.name].blobs:
            if blob != without:
                self._spaces[gone.tier].entries[blob].references -= 1
        self._transfers.keep_free(gone.tier, -self._kept_free_bytes(gone.tier, gone.name))
