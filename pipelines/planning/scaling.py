"""How many workers each stage needs at a rate, solved ahead, and when to change them.

The load is measured at the front, where requests are offered: all stages are sized from it
together, and a shortage in one stage is not paid for in the others.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipelines.graph import compile_steps
from pipelines.planning.sizing import plan_pipeline, stage_rates
from pipelines.planning.tandem import profile_of
from pipelines.steps import Step
from policy.errors import InfeasibleError, InvalidInputError
from policy.objective import ServiceLevelObjective

# Each rate of a table is so many times the one before.
_STEP = 1.15
# The first rate is this share of what one worker in each stage can carry.
_FIRST_SHARE = 0.1
_REQUESTS = 50_000


@dataclass(frozen=True)
class DivisionTable:
    """The workers of each stage by the rate of the requests.

    Attributes
    ----------
    rates_per_s : tuple of float
        Increasing. Entry ``i`` of `divisions` carries every rate up to ``rates_per_s[i]``.
    divisions : tuple of mapping from str to int
        Workers by stage. The last holds for higher rates, too, and cannot keep the SLA there.
    """

    rates_per_s: tuple[float, ...]
    divisions: tuple[Mapping[str, int], ...]

    def lookup(self, rate_per_s: float) -> Mapping[str, int]:
        """Return the workers for a rate."""
        at = bisect_left(self.rates_per_s, rate_per_s)
        return self.divisions[min(at, len(self.divisions) - 1)]


def solve_divisions(
    steps: Sequence[Step],
    sla: ServiceLevelObjective,
    max_workers: int,
    worker_costs: Mapping[str, float] | None = None,
    *,
    requests: int = _REQUESTS,
) -> DivisionTable:
    """Solve the divisions of least cost for all rates that a number of workers can carry.

    Parameters
    ----------
    steps : sequence of steps
        Every stage needs a profile.
    sla : ServiceLevelObjective
        Of the whole pipeline.
    max_workers : int
        Of all stages together.
    worker_costs : mapping of str to float, optional
        Cost of one worker of each stage; 1 if not given.
    requests : int
        Simulated for each division that is tried.

    Raises
    ------
    InvalidInputError
        A stage has no profile, or there are fewer workers than stages.
    InfeasibleError
        No number of workers keeps the SLA, even with little load.
    """
    stages = compile_steps(steps).stages
    if max_workers < len(stages):
        raise InvalidInputError(
            f"max_workers: must be at least {len(stages)}, one for each stage, not {max_workers}"
        )
    per_request = stage_rates(steps, 1.0)
    alone_per_s = min(
        profile_of(stage).capacity_per_s / per_request[stage.name] for stage in stages
    )
    rates: list[float] = []
    divisions: list[Mapping[str, int]] = []
    rate_per_s = _FIRST_SHARE * alone_per_s
    while True:
        try:
            plan = plan_pipeline(steps, rate_per_s, sla, worker_costs, requests=requests)
        except InfeasibleError:
            # More load can make an SLA impossible: batches grow, and they take longer.
            if not divisions:
                raise
            break
        workers = {name: setting.workers for name, setting in plan.settings.items()}
        if any(stage.place == "loop" and workers[stage.name] > 1 for stage in stages):
            break
        if sum(workers.values()) > max_workers:
            break
        rates.append(rate_per_s)
        divisions.append(workers)
        rate_per_s *= _STEP
    if not divisions:
        raise InfeasibleError(
            f"max_workers: {max_workers} do not keep {sla.in_words()}, even with little load"
        )
    return DivisionTable(tuple(rates), tuple(divisions))


class StageScaler:
    """When the workers of the stages change, on any clock.

    More workers are ordered at once; fewer only when they would have been enough for some time.

    Parameters
    ----------
    table : DivisionTable
    margin : float
        The table is looked up at the measured rate times this.
    hold_s : float
        How long fewer workers must have been enough.

    Raises
    ------
    InvalidInputError
        The margin is below 1, or the hold is negative.
    """

    def __init__(self, table: DivisionTable, margin: float = 1.2, hold_s: float = 60.0) -> None:
        if not margin >= 1:
            raise InvalidInputError(f"margin: must be at least 1, not {margin:g}")
        if not hold_s >= 0:
            raise InvalidInputError(f"hold_s: must be at least 0, not {hold_s:g}")
        self._table, self._margin, self._hold_s = table, margin, hold_s
        self._needs: deque[tuple[float, Mapping[str, int]]] = deque()

    def decide(self, now_s: float, rate_per_s: float) -> dict[str, int]:
        """Return the workers of each stage.

        Parameters
        ----------
        now_s : float
        rate_per_s : float
            Requests offered per second since the last call.
        """
        need = self._table.lookup(self._margin * rate_per_s)
        self._needs.append((now_s, need))
        while self._needs[0][0] < now_s - self._hold_s:
            self._needs.popleft()
        return {stage: max(past[stage] for _, past in self._needs) for stage in need}
