"""One version of a hosted model and its state."""

import asyncio
from dataclasses import dataclass, field
from enum import Enum

from deployments.config.replica_args import ModelConfig
from deployments.serving.service import InferenceService


class State(Enum):
    """The states of the protocol's repository extension."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(eq=False)
class HostedVersion:
    config: ModelConfig
    state: State = State.LOADING
    #: Why it is not available.
    reason: str = ""
    service: InferenceService | None = None
    #: Unanswered requests, except on the fast path.
    in_use: int = 0
    #: When the last one began, by `time.monotonic`.
    last_use_s: float = 0.0
    unused: asyncio.Event = field(default_factory=asyncio.Event)
