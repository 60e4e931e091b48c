"""One version of a hosted model and its state."""

import asyncio
from dataclasses import dataclass, field
from enum import Enum

from deployments.config.replica_args import ModelConfig
from deployments.serving.service import InferenceService


class State(Enum):
    """The state of a version, in the terms of the protocol's repository extension."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(eq=False)
class HostedVersion:
    """One version of a model.

    Attributes
    ----------
    reason : str
        Why it is not available.
    service : InferenceService or None
        None unless it is loaded.
    in_use : int
        Unanswered requests, except on the fast path.
    last_use_s : float
        When the last one began, by `time.monotonic`.
    """

    config: ModelConfig
    state: State = State.LOADING
    reason: str = ""
    service: InferenceService | None = None
    in_use: int = 0
    last_use_s: float = 0.0
    unused: asyncio.Event = field(default_factory=asyncio.Event)
