"""A service's start: how long each phase took, and where its weights came from."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deployments.models.weights import WeightsLoader
from deployments.profiling.kept_profile import KeptProfile
from deployments.start_split import StartSplit
from modelstore.names import STORE_PREFIX


@dataclass
class ServiceStart:
    """The start of one service.

    Attributes
    ----------
    split : StartSplit
        The times of its phases.
    store_socket : Path or None
        Socket of the model store's manager; None means that of this user.
    kept_profile : KeptProfile or None
        Where replicas share the profile that one of them measured.
    weights : WeightsLoader or None
        What the model loads its weights with; `deployments.service_loading.load_service` sets it.
    """

    split: StartSplit = field(default_factory=StartSplit)
    store_socket: Path | None = None
    kept_profile: KeptProfile | None = None
    weights: WeightsLoader | None = None

    def explain(self) -> dict[str, Any]:
        """Return the start in `GET /sojourn/policy`."""
        source, found_in = None, None
        if self.weights is not None:
            source, found_in = self.weights.source, self.weights.found_in
        socket = self.store_socket
        return {
            "total_s": self.split.total_s,
            "phases_s": self.split.seconds(),
            "first_answer_ms": (
                None if self.split.first_answer_s is None else 1e3 * self.split.first_answer_s
            ),
            "weights": source,
            "weights_found_in": found_in,
            "store_socket": None if socket is None else str(socket),
        }

    def to_floats(self) -> dict[str, float]:
        """Return what the autoscaler is told: whether the weights were in the node's memory.

        Empty if they do not come from the store, so that starts cannot differ by that.
        """
        if self.weights is None or not (self.weights.source or "").startswith(STORE_PREFIX):
            return {}
        return {"store_hit": float(self.weights.found_in == "host")}
