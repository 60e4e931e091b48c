"""What the core notes of those who wait for a model or hold it."""

from dataclasses import dataclass

from deployments.modelstore.core.actions import Tier
from deployments.modelstore.names import Manifest, ModelName


@dataclass(frozen=True)
class Open:
    """A holder that waits for its model, which was in `source` when its room was taken."""

    name: ModelName
    tier: Tier
    source: Tier = Tier.REMOTE


@dataclass(frozen=True)
class Lease:
    """A model that a holder has in a tier."""

    name: ModelName
    tier: Tier
    manifest: Manifest


@dataclass(frozen=True)
class Pin:
    """The holder that keeps a pinned model."""

    name: ModelName
