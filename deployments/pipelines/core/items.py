"""What moves through a pipeline: requests, and their items at the stages."""

import math
from dataclasses import dataclass, field
from typing import Any

from policy.batcher.requests import Batch, Request


@dataclass(eq=False, slots=True)
class Flow:
    """One request on its way through the pipeline.

    Attributes
    ----------
    id : int
        Its number in the order of arrival; never used twice.
    arrival_s, deadline_s : float
        On the caller's clock; an answer after the deadline is useless.
    content : Any
        The caller's own data; the core never reads it.
    done : bool
        Whether it has its result or its error.
    result : Any
        The result; valid if `done` and `error` is None.
    error : Exception or None
        Why it failed.
    items : set of Item
        Its items that are at a stage or wait to be joined.
    stage_times : list of (str, float, float) or None
        Stage, wait in ms, and service in ms, in the order of completion; None: not recorded.
    """

    id: int
    arrival_s: float
    deadline_s: float = math.inf
    content: Any = None
    done: bool = field(default=False, init=False)
    result: Any = field(default=None, init=False)
    error: Exception | None = field(default=None, init=False)
    items: set["Item"] = field(default_factory=set, init=False)
    stage_times: list[tuple[str, float, float]] | None = field(default=None, init=False)


@dataclass(eq=False, slots=True)
class Item:
    """One value on its way to the next stage: of a whole request, or of a branch of it.

    Attributes
    ----------
    flow : Flow
        The request.
    frame : Frame or None
        The fan-out that it belongs to; None outside of any.
    place : int
        Its place among the results of `frame`.
    value : Any
        The input of the stage where it waits.
    stage : int
        The number of the latest stage that it reached.
    arrival_s : float
        When it reached this stage.
    deaths : int
        Workers that died or hung on it.
    queued : Request or None
        The item in the queue of its stage.
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
    """One batch for a worker.

    Attributes
    ----------
    items : list of Item
        Its contents, in the order of the slices of `batch`.
    started_s : float
        When it was formed.
    batch : Batch
        The batch of the stage's batcher.
    """

    items: list[Item]
    started_s: float
    batch: Batch

    @property
    def values(self) -> list[Any]:
        """The inputs of the stage."""
        return [item.value for item in self.items]


@dataclass(eq=False, slots=True)
class Frame:
    """A fan-out that waits for its branches.

    Attributes
    ----------
    item : Item
        The item that was fanned out; it continues with the joined result.
    node : int
        The node that fanned it out.
    results : list
        One entry for each branch, in order.
    missing : int
        Branches that have not arrived.
    """

    item: Item
    node: int
    results: list[Any]
    missing: int


class Retry:
    """The outcome of an item that its batch did not compute, through no fault of its own."""

    def __reduce__(self) -> str:
        """Pickle by name: there is one, in whichever process."""
        return "RETRY"


RETRY = Retry()


@dataclass(frozen=True, slots=True)
class ItemFailure:
    """The outcome of an item that failed alone."""

    error: Exception


@dataclass(frozen=True, slots=True)
class BatchFailure:
    """The outcome of a batch that failed.

    Attributes
    ----------
    error : Exception
        What the stage raised.
    whole : bool
        Whether all of its items failed; otherwise one of them, unknown which, made it fail.
    """

    error: Exception
    whole: bool = False


@dataclass(frozen=True, slots=True)
class WorkerLoss:
    """The outcome of a batch whose worker died or hung.

    Attributes
    ----------
    reason : str
        What happened, for the error of an item that is not retried again.
    """

    reason: str


Outcome = list[Any] | BatchFailure | WorkerLoss
"""Of a batch: for each item its result, an `ItemFailure` or `RETRY`; or what befell the batch."""
