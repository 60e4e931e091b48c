"""JSON descriptions of the store's models and tiers."""

from collections.abc import Mapping
from typing import Any

from deployments.modelstore.core.actions import Tier
from deployments.modelstore.core.tier_space import TierSpace
from deployments.modelstore.core.transfers import Transfers
from deployments.modelstore.names import Manifest, ModelName


def describe_model(
    name: ModelName, manifest: Manifest, spaces: Mapping[Tier, TierSpace]
) -> dict[str, Any]:
    """Return a model's name, its bytes, and its resident bytes per tier."""
    resident = {
        f"{tier.name.lower()}_bytes": sum(
            blob.size_bytes
            for blob in manifest.blobs
            if (entry := space.get(blob)) is not None and entry.resident
        )
        for tier, space in spaces.items()
    }
    return {
        "name": str(name),
        "files": len(manifest.files),
        "bytes": manifest.size_bytes,
        **resident,
    }


def describe_tiers(transfers: Transfers) -> dict[str, Any]:
    """Return each tier's size and counters, and the copies between tiers since the start."""
    return {
        "tiers": {
            tier.name.lower(): {
                "budget_bytes": space.budget_bytes,
                "used_bytes": space.used_bytes,
                "blobs": len(space.entries),
                "hits": transfers.hits[tier],
                "misses": transfers.misses[tier],
                "evictions": transfers.evictions[tier],
            }
            for tier, space in transfers.spaces.items()
        },
        "copies": [
            {
                "source": source.name.lower(),
                "target": target.name.lower(),
                "bytes": size_bytes,
                "seconds": transfers.copied_s[source, target],
            }
            for (source, target), size_bytes in sorted(transfers.copied_bytes.items())
        ],
    }
