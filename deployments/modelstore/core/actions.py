"""What the core asks its driver to do, and what it tells the holders of models."""

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum, IntEnum

from deployments.modelstore.errors import StoreError
from deployments.modelstore.names import Blob, Manifest, ModelName


class Tier(IntEnum):
    """Where a blob may be, fastest first. A blob reaches a tier from a tier below it.

    `DEVICE` is the memory of a GPU (`deployments.modelstore.device`); a store need not have it.
    """

    DEVICE = 0
    HOST = 1
    DISK = 2
    REMOTE = 3


class Fault(Enum):
    """Why a copy failed, as far as it decides what happens next.

    `SOURCE`: the disk no longer has the right bytes, and the driver deleted
    them; they are fetched again.
    `TARGET`: the tier that was written has no room, whatever its budget says; it is left out.
    `OTHER`: the remote failed, or served a wrong file; whoever waits for the blob is refused.
    """

    SOURCE = "source"
    TARGET = "target"
    OTHER = "other"


@dataclass(frozen=True)
class Resolve:
    """Find out the files of a model; answer with `resolved` or `resolve_failed`."""

    name: ModelName


@dataclass(frozen=True)
class Copy:
    """Copy a blob up; answer with `copied` or `copy_failed`, and `copy_progress` in between."""

    blob: Blob
    source: Tier
    target: Tier


@dataclass(frozen=True)
class Drop:
    """Free the blob's room in the tier. Nobody uses it there."""

    blob: Blob
    tier: Tier


@dataclass(frozen=True)
class Granted:
    """The model is in the tier and stays there until the holder leaves.

    Attributes
    ----------
    source : Tier
        The fastest tier that had all of the model when it was opened.
    """

    holder: Hashable
    name: ModelName
    tier: Tier
    manifest: Manifest
    source: Tier


@dataclass(frozen=True)
class Refused:
    """The holder's open failed. It holds nothing."""

    holder: Hashable
    error: StoreError


@dataclass(frozen=True)
class Progress:
    """How far a waiting holder's model is: bytes of the step that each blob is at."""

    holder: Hashable
    done_bytes: int
    total_bytes: int


Action = Resolve | Copy | Drop | Granted | Refused | Progress
