"""State of the holders that wait for a model or have one."""

from dataclasses import dataclass

from deployments.modelstore.core.actions import Tier
from deployments.modelstore.names import Manifest, ModelName


@dataclass(frozen=True)
class Open:
    """A holder that waits for its model. The model was in `source` when its room was reserved."""

    name: ModelName
    tier: Tier
    source: Tier = Tier.REMOTE


@dataclass(frozen=True)
class Lease:
    """A holder's model in a tier."""

    name: ModelName
    tier: Tier
    manifest: Manifest


@dataclass(frozen=True)
class Pin:
    """The holder of a pinned model."""

    name: ModelName
