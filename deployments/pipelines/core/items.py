"""Requests, and their items at the stages."""

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from policy.batcher.requests import Batch, Request


@dataclass(eq=False, slots=True)
class Flow:
    """One request in the pipeline; `content` is the caller's own."""

    id: int
    arrival_s: float
    deadline_s: float = math.inf
    content: Any = None
    done: bool = field(default=False, init=False)
    result: Any = field(default=None, init=False)
    error: Exception | None = field(default=None, init=False)
    items: set["Item"] = field(default_factory=set, init=False)


@dataclass(eq=False, slots=True)
class Item:
    """One value between stages: of a whole request, or of a branch of it.

    `place` is its place among the results of its fan-out `frame`. `arrival_s` and `queued` are of
    the latest stage; `deaths` counts the workers that died or hung on it there.
    """

    flow: Flow
    frame: "Frame | None" = None
    place: int = 0
    value: Any = None
    stage: int = -1
    arrival_s: float = 0.0
    deaths: int = 0
    queued: Request | None = None


@dataclass(eq=False, slots=True)
class StageBatch:
    """One batch for a worker; `items` are in the order of the slices of `batch`."""

    items: list[Item]
    started_s: float
    batch: Batch

    @property
    def values(self) -> list[Any]:
        return [item.value for item in self.items]


@dataclass(eq=False, slots=True)
class Frame:
    """A fan-out at a node: `item` continues with the joined `results` once none is missing."""

    item: Item
    node: int
    results: list[Any]
    missing: int


class Retry(Enum):
    """The outcome of an item that its batch did not compute, through no fault of its own."""

    RETRY = 0


RETRY = Retry.RETRY


@dataclass(frozen=True, slots=True)
class ItemFailure:
    error: Exception


@dataclass(frozen=True, slots=True)
class BatchFailure:
    """The outcome of a failed batch: it failed as a whole, or because of one unknown item."""

    error: Exception
    whole: bool = False


@dataclass(frozen=True, slots=True)
class WorkerLoss:
    reason: str


Outcome = list[Any] | BatchFailure | WorkerLoss
"""Of a batch: for each item its result, an `ItemFailure` or `RETRY`; or what befell the batch."""
