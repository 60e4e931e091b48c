"""Actions that the core orders from its driver, and messages to the holders of models."""

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum, IntEnum

from deployments.modelstore.errors import StoreError
from deployments.modelstore.names import Blob, Manifest, ModelName


class Tier(IntEnum):
    """A place where a blob may be, fastest first. A blob is copied to a tier from a tier below.

    `DEVICE` is the memory of a GPU (`deployments.modelstore.device`) and optional.
    """

    DEVICE = 0
    HOST = 1
    DISK = 2
    REMOTE = 3


class Fault(Enum):
    """Cause of a failed copy.

    `SOURCE`: the disk no longer has the right bytes, and the driver has deleted them. The remote is
    read instead.
    `TARGET`: the target tier has no room, whatever its budget. The tier is skipped.
    `OTHER`: the remote failed or served a wrong file. Opens that wait for the blob are refused.
    """

    SOURCE = "source"
    TARGET = "target"
    OTHER = "other"


@dataclass(frozen=True)
class Resolve:
    """Look up the files of a model. The driver answers with `resolved` or `resolve_failed`."""

    name: ModelName


@dataclass(frozen=True)
class Copy:
    """Copy a blob up. The driver answers with `copied` or `copy_failed`."""

    blob: Blob
    source: Tier
    target: Tier


@dataclass(frozen=True)
class Drop:
    """Free a blob's room in a tier. The blob is not in use there."""

    blob: Blob
    tier: Tier


@dataclass(frozen=True)
class Granted:
    """The model is in the tier and stays there until the holder leaves."""

    holder: Hashable
    name: ModelName
    tier: Tier
    manifest: Manifest
    #: The fastest tier that had all of the model when it was opened.
    source: Tier


@dataclass(frozen=True)
class Refused:
    """The open failed. The holder has nothing."""

    holder: Hashable
    error: StoreError


Action = Resolve | Copy | Drop | Granted | Refused
