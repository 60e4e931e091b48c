"""A policy for arrivals that come in bursts, estimated and solved while the replica runs.

The counts of arrivals tell the MMPP(2) that they come from (`policy.mmpp.CountMoments`). A child
process searches the control limit and max wait of least power that keep the SLA under it
(`policy.solvers.mmpp`), which takes a few seconds. Until then, and where there is no such process,
the table's own safeguard against bursts is in force (`PolicyTable.for_bursts`).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from deployments.control.child_process import ChildProcess
from policy.batching_policy import BatchingPolicy
from policy.burstiness import COUNT_WINDOW_S
from policy.errors import SojournError
from policy.mmpp import CountMoments, Mmpp
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.table import PolicyTable

logger = logging.getLogger("sojourn.policy")

#: Time after which a count of arrivals keeps 1/e of its weight in the estimate.
MEMORY_S = 200.0
#: Ticks between two looks at the process, and at least before and between searches.
LOOK_EVERY, SEARCH_EVERY = 10, 60
#: Where the rate relaxes more slowly, the batcher's own estimate of it follows the bursts.
SLOWEST_S = 10.0
#: Bursts of less than this times the mean rate need no policy of their own.
LEAST_BURST = 1.15
#: Changes of the higher rate, of the mean rate, and of the relaxation time (as ratios) up to which
#: a policy stays.
SAME_BURST, SAME_MEAN, SAME_RELAXATION = 1.03, 1.1, 2.0
#: The policy is for rates this far below the lower rate of the process and above the higher one.
BELOW, ABOVE = 0.8, 1.2


class BurstPolicy:
    """Keep a policy solved for the bursts in the arrivals.

    Parameters
    ----------
    on_change : callable
        Called on the event loop after `policy` has changed, but not by `forget`.

    Attributes
    ----------
    process : Mmpp or None
        The process that `policy` was solved for.
    policy : BatchingPolicy or None
        None: the arrivals have no bursts that need one, or it is not solved yet.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.process: Mmpp | None = None
        self.policy: BatchingPolicy | None = None
        self._on_change = on_change
        self._counts = CountMoments(COUNT_WINDOW_S, MEMORY_S)
        self._ticks = 0
        self._next_search = SEARCH_EVERY
        self._child = ChildProcess("deployments.control.burst_policy_process")
        self._task: asyncio.Task[None] | None = None

    @property
    def solving(self) -> bool:
        """Whether a search is under way."""
        return self._task is not None and not self._task.done()

    def observe(self, arrival_counts: Sequence[int]) -> None:
        """Record the arrivals of one tick, by window of `COUNT_WINDOW_S`."""
        for rows in arrival_counts:
            self._counts.observe(rows)
        self._ticks += 1

    def revise(
        self,
        profile: Profile,
        objective: ServiceLevelObjective,
        waiting_room: int,
        table: PolicyTable,
    ) -> None:
        """Search a policy if a look is due and the arrivals have other bursts than before."""
        if self._ticks % LOOK_EVERY:
            return
        process = self._counts.fit()
        if process is None or not _worth_a_policy(process):
            was_in_force = self.policy is not None
            self._drop()
            if was_in_force:
                self._on_change()
        elif (
            self._ticks >= self._next_search
            and not self.solving
            and (self.process is None or not _same(process, self.process))
        ):
            self._next_search = self._ticks + SEARCH_EVERY
            self._task = asyncio.create_task(
                self._solve(profile, process, objective, waiting_room, table)
            )

    def forget(self) -> None:
        """Drop the policy, and a search under way: they are for something else."""
        self._drop()
        self._next_search = SEARCH_EVERY

    def _drop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self.process = self.policy = None

    def applied_to(self, table: PolicyTable) -> PolicyTable:
        """Return the table with the policy at the rates of the process."""
        if self.policy is None or self.process is None:
            return table
        rates = self.process.rates_per_s
        return table.with_policy_between(BELOW * min(rates), ABOVE * max(rates), self.policy)

    def report(self) -> dict[str, Any]:
        """Return whether a policy is in force, and the process it was solved for, for JSON."""
        return {
            "policy": "in force" if self.policy else "solving" if self.solving else "none",
            "rates_per_s": self.process and self.process.rates_per_s,
            "stays_s": self.process and self.process.stays_s,
        }

    async def _solve(
        self,
        profile: Profile,
        process: Mmpp,
        objective: ServiceLevelObjective,
        waiting_room: int,
        table: PolicyTable,
    ) -> None:
        message = {
            "profile": profile.to_dict(),
            "process": asdict(process),
            "objective": asdict(objective),
            "waiting_room": waiting_room,
            "start": table.lookup(process.mean_rate_per_s).to_dict(),
        }
        try:
            found = await self._child.ask(message)
        except (SojournError, OSError, ValueError) as error:
            logger.error("solving for bursts failed: %s", error)
            return
        self.process, self.policy = process, BatchingPolicy.from_dict(found)
        self._on_change()

    async def close(self) -> None:
        """Cancel an unfinished search, and end its process."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._child.close()


def _worth_a_policy(process: Mmpp) -> bool:
    bursts = max(process.rates_per_s) / process.mean_rate_per_s
    return bursts > LEAST_BURST and process.relaxation_s < SLOWEST_S


def _same(first: Mmpp, second: Mmpp) -> bool:
    def close(one: float, other: float, ratio: float) -> bool:
        return max(one, other) <= ratio * min(one, other)

    return (
        close(max(first.rates_per_s), max(second.rates_per_s), SAME_BURST)
        and close(first.mean_rate_per_s, second.mean_rate_per_s, SAME_MEAN)
        and close(first.relaxation_s, second.relaxation_s, SAME_RELAXATION)
    )
