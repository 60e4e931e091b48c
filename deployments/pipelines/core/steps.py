"""The parts of a pipeline as its user writes them: stages and how they are connected."""

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

from deployments.models.loading import DEVICES
from policy.batching_policy import BatchingPolicy
from policy.errors import InvalidInputError
from policy.profile import Profile
from policy.values import check_at_least

Place = Literal["process", "thread", "loop", "deployment"]
PLACES = get_args(Place)

#: Of this process, before it pinned itself.
AVAILABLE_CPUS = sorted(os.sched_getaffinity(0))
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
#: Default maximum number of items from one value in an `Each`.
MAX_ITEMS = 1000


@dataclass(frozen=True, eq=False)
class Stage:
    """One stage: plain synchronous code, its workers, and its batching.

    Attributes
    ----------
    code : str, type, callable or object
        An import path ``package.module:name``, a class, which is constructed in each worker, a
        function, or an object. Its ``predict`` is called if it has one, else the object; the items
        of a `sojourn.Model` are mappings from the names of its inputs to arrays of one row.
    name : str
        Unique in the pipeline; by default the name of the class or function, in lower case.
    options : mapping
        Keyword arguments of the class.
    workers : int
        How many run at the same time.
    cpus : sequence of int, optional
        One worker, a process or thread, for each entry, pinned to that CPU; instead of `workers`.
    place : {"process", "thread", "loop", "deployment"}
        Where the workers run: each in a process; in threads; on the event loop, for code of some
        microseconds; or each as a Ray replica of its own, without Ray in processes.
    batch_size : int, optional
        None: ``predict`` takes one item. Otherwise it takes a list of at most so many, and returns
        as many results. An exception among the results fails that item alone.
    max_wait_ms : float
        A free worker waits for a full batch until its first item has waited this long.
    policy : BatchingPolicy or "smdp", optional
        A policy by queue length; or ``"smdp"`` to solve one for each arrival rate from `profile`.
    profile : Profile, optional
        The time of its batches, by which requests that cannot be finished in time are refused.
    device : {"cpu", "cuda"}
        Of a `Model`.
    weights : str, optional
        The file or ``store://[framework/]name[@version]`` in place of a `Model`'s own weights.
    share : bool
        Share the files that the code loads, as `sojourn.shared_weights` does.
    hang_after_s : float
        A worker that takes longer than this for one batch is killed and replaced.

    Raises
    ------
    InvalidInputError
        A value is out of its range, or two exclude each other.
    """

    code: Any
    name: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    workers: int = 1
    cpus: Sequence[int] | None = None
    place: Place = "process"
    batch_size: int | None = None
    max_wait_ms: float = 0.0
    policy: BatchingPolicy | Literal["smdp"] | None = None
    profile: Profile | None = None
    device: str = "cpu"
    weights: str | None = None
    share: bool = False
    hang_after_s: float = 30.0

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", default_name(self.code))
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise InvalidInputError(
                f"stage name: must be letters, digits, '.', '_' or '-', not {self.name!r}"
            )
        if self.cpus is not None:
            problem = cpus_problem(self.cpus)
            self._require(
                (
                    self.place in ("process", "thread"),
                    "cpus need place process or thread; the pipeline's own cpus pin what place "
                    "loop runs",
                ),
                (self.workers in (1, len(self.cpus)), "give workers or cpus, not both"),
                (not problem, problem),
            )
            object.__setattr__(self, "workers", len(self.cpus))
        size, workers = self.batch_size, self.workers
        whole = "a whole number of at least 1"
        self._require(
            (type(workers) is int and workers >= 1, f"workers must be {whole}, not {workers!r}"),
            (self.place in PLACES, f"place must be {' or '.join(PLACES)}, not {self.place!r}"),
            (self.place != "loop" or workers == 1, "place loop has one worker"),
            (
                size is None or (type(size) is int and size >= 1),
                f"batch_size must be {whole}, or nothing for single items, not {size!r}",
            ),
            (
                0 <= self.max_wait_ms < math.inf,
                f"max_wait_ms must be a finite number of at least 0, not {self.max_wait_ms!r}",
            ),
            (
                not self.max_wait_ms or (size is not None and size > 1),
                "max_wait_ms needs a batch_size above 1",
            ),
            (
                self.place != "loop" or self.hang_after_s == Stage.hang_after_s,
                "hang_after_s is of a worker; with a stage of place loop the event loop hangs",
            ),
            (self.hang_after_s > 0, f"hang_after_s must be above 0, not {self.hang_after_s!r}"),
            (
                self.device in DEVICES,
                f"device must be {' or '.join(DEVICES)}, not {self.device!r}",
            ),
        )
        self._check_policy(self.policy, size or 1)

    def _require(self, *rules: tuple[bool, str]) -> None:
        for valid, said in rules:
            if not valid:
                raise InvalidInputError(f"stage {self.name}: {said}")

    def _check_policy(self, policy: Any, size: int) -> None:
        has_profile, none = self.profile is not None, policy is None
        starts = policy.max_batch_size if isinstance(policy, BatchingPolicy) else 0
        known = self.profile.max_batch_size if self.profile is not None else size
        self._require(
            (
                none or starts > 0 or policy == "smdp",
                f"policy must be a BatchingPolicy or 'smdp', not {policy!r}",
            ),
            (policy != "smdp" or has_profile, "policy smdp needs a profile"),
            (none or self.batch_size is not None, "a policy needs batch_size, the largest"),
            (none or not self.max_wait_ms, "give policy or max_wait_ms, not both"),
            (starts <= size, f"the policy starts batches of {starts}, batch_size is {size}"),
            (known >= size, f"the profile ends at batches of {known}, batch_size is {size}"),
        )

    @property
    def most_workers(self) -> float:
        """How many workers the stage may have: one per CPU if it names them."""
        if self.cpus is not None:
            return len(self.cpus)
        return 1 if self.place == "loop" else math.inf

    @cached_property
    def batch_profile(self) -> Profile | None:
        return None if self.profile is None else self.profile.up_to(self.batch_size or 1)

    def first_policy(self) -> BatchingPolicy:
        """Return the first policy: if one is solved, until its table is ready."""
        if isinstance(self.policy, BatchingPolicy):
            return self.policy
        size = self.batch_size or 1
        if size == 1 or self.max_wait_ms == 0:
            return BatchingPolicy.from_control_limit(1, size)
        return BatchingPolicy.from_control_limit(size, size, self.max_wait_ms)


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Send each item through all branches, steps or lists of steps, and join their results.

    `join` makes the result of the list of the branches' results, in order; by default the list.
    """

    branches: Sequence["Step | Sequence[Step]"]
    join: Callable[[list[Any]], Any] = list

    def __post_init__(self) -> None:
        if not self.branches:
            raise InvalidInputError("ensemble: needs at least one branch")

    @property
    def parts(self) -> Mapping[Any, "Step | Sequence[Step]"]:
        """The branches, by their number."""
        return dict(enumerate(self.branches))

    @property
    def expected_shares(self) -> Mapping[Any, float]:
        """The share of the items that takes each branch: all of them."""
        return dict.fromkeys(self.parts, 1.0)


@dataclass(frozen=True, eq=False)
class Switch:
    """Send each item through one of several branches, steps or lists of steps.

    `choose` returns the key of an item's branch; an empty branch passes the item on. `shares`, for
    planning, are the fractions of the items in each branch, by default all the same.
    """

    choose: Callable[[Any], Any]
    branches: Mapping[Any, "Step | Sequence[Step]"]
    shares: Mapping[Any, float] | None = None

    def __post_init__(self) -> None:
        if not self.branches:
            raise InvalidInputError("switch: needs at least one branch")
        if self.shares is not None and (
            set(self.shares) != set(self.branches)
            or not min(self.shares.values()) > 0
            or not abs(sum(self.shares.values()) - 1) <= 1e-9
        ):
            raise InvalidInputError(
                "switch: shares must have one above 0 for each branch, and add up to 1"
            )

    @property
    def parts(self) -> Mapping[Any, "Step | Sequence[Step]"]:
        """The branches, by the values that choose them."""
        return self.branches

    @property
    def expected_shares(self) -> Mapping[Any, float]:
        """The share of the items that takes each branch, by its key."""
        return self.shares or dict.fromkeys(self.branches, 1 / len(self.branches))


@dataclass(frozen=True, eq=False)
class Each:
    """Send each element of an item through a branch by itself, and join the results.

    `join` is as of `Ensemble`. An item with more than `max_items` elements fails; for planning, it
    has `expected_items`.
    """

    branch: "Step | Sequence[Step]"
    join: Callable[[list[Any]], Any] = list
    max_items: int = MAX_ITEMS
    expected_items: int = 1

    def __post_init__(self) -> None:
        check_at_least(1, "each: max_items", self.max_items)
        if not 1 <= self.expected_items <= self.max_items:
            raise InvalidInputError(
                f"each: expected_items must be 1 to {self.max_items}, not {self.expected_items}"
            )

    @property
    def parts(self) -> Mapping[Any, "Step | Sequence[Step]"]:
        """The branch, as the only part."""
        return {0: self.branch}

    @property
    def expected_shares(self) -> Mapping[Any, float]:
        """The elements of an item in the branch."""
        return {0: self.expected_items}


Step = Stage | Ensemble | Switch | Each


def cpus_problem(cpus: Sequence[int]) -> str:
    """Return what is wrong with CPUs to be pinned to, or nothing."""
    for cpu in cpus:
        if not (type(cpu) is int and cpu in AVAILABLE_CPUS):
            has = ", ".join(map(str, AVAILABLE_CPUS))
            return f"CPU {cpu!r} is not available; this machine has {has}"
    return "" if cpus else "cpus must name at least one CPU"


def default_name(code: Any) -> str:
    if isinstance(code, str):
        return code.rpartition(":")[2].lower()
    named = code if hasattr(code, "__name__") else type(code)
    return str(named.__name__).strip("<>_").lower()
