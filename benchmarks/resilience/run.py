"""An experiment under way."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.resilience.service import Service

#: How long the load runs before the fault.
BEFORE_S = 3.0


@dataclass
class Run:
    """One experiment under way.

    Attributes
    ----------
    notes : list of str
        What else was seen, for the table.
    """

    service: Service
    quick: bool = False
    fault_s: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def misbehave_s(self) -> float:
        """How long strangers misbehave."""
        return 8.0 if self.quick else 15.0

    def begin(self) -> None:
        self.fault_s = time.monotonic()


Fault = Callable[[Run], None]
