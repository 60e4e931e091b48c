"""A service's start: how long each phase took, and where its weights came from."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deployments.models.startup_timings import StartupTimings
from deployments.models.weights import WeightsLoader
from deployments.profiling.profile_cache import ProfileCache


@dataclass
class ServiceStart:
    """The start of one service. Without a `store_socket`, the model store is that of this user.

    `alone`: the replica serves no other model on the device.
    """

    timings: StartupTimings = field(default_factory=StartupTimings)
    store_socket: Path | None = None
    profile_cache: ProfileCache | None = None
    weights: WeightsLoader | None = None
    alone: bool = True

    def explain(self) -> dict[str, Any]:
        source, found_in = None, None
        if self.weights is not None:
            source, found_in = self.weights.source, self.weights.found_in
        socket = self.store_socket
        return {
            "total_s": self.timings.total_s,
            "phases_s": self.timings.seconds(),
            "weights": source,
            "weights_found_in": found_in,
            "store_socket": None if socket is None else str(socket),
        }
