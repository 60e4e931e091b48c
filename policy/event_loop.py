"""The time that requests take of a replica's event loop, before and after the device.

The event loop reads, parses and checks each request and writes its answer; each batch costs it the
hand-over and the wake-ups besides. In a profile's file::

    "event_loop": {"request_ms": 0.08, "batch_ms": 0.15, "shares_cpu": true}
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policy.errors import InvalidInputError
from policy.values import check_at_least, number


@dataclass(frozen=True)
class EventLoopCosts:
    """The time that the event loop takes per request and per batch.

    Attributes
    ----------
    request_ms : float
        Time of the event loop per request, for reading it and for answering it.
    batch_ms : float
        Time of the event loop per batch: hand-over, wake-ups, delivery.
    shares_cpu : bool
        Whether batches are computed on the CPU that the event loop runs on, or keep the
        interpreter's lock. Then event loop and device take turns, as one server (serial). Otherwise
        the device works beside the event loop (tandem): a GPU, or a CPU of its own.
    """

    request_ms: float
    batch_ms: float
    shares_cpu: bool

    def __post_init__(self) -> None:
        for name in ("request_ms", "batch_ms"):
            check_at_least(0, f"event loop: {name}", getattr(self, name))
        if not isinstance(self.shares_cpu, bool):
            raise InvalidInputError(
                f"event loop: shares_cpu must be true or false, not {self.shares_cpu!r}"
            )

    def ms_per_request(self, batch_size: float) -> float:
        """Return the event loop's time per request where batches have `batch_size` on average."""
        return self.request_ms + self.batch_ms / batch_size

    def ms_by_batch_size(self, max_batch_size: int) -> NDArray[np.float64]:
        """Return the event loop's time by batch size, shape (max_batch_size,)."""
        return self.batch_ms + self.request_ms * np.arange(1.0, max_batch_size + 1)

    @classmethod
    def from_dict(cls, content: object) -> "EventLoopCosts":
        keys = [field.name for field in fields(cls)]
        if not isinstance(content, Mapping) or set(content) != set(keys):
            raise InvalidInputError(
                f"event_loop: must be an object with the keys {', '.join(keys)}, not {content!r}"
            )
        request_ms, batch_ms = (number(key, content[key]) for key in ("request_ms", "batch_ms"))
        return cls(request_ms, batch_ms, content["shares_cpu"])

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
