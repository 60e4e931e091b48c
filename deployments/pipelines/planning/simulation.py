"""A pipeline in virtual time: the live core with admission and scaling, stages by profile.

`deployments.pipelines.planning.tandem` is a thousand times faster, but has no refusals and no
scaling.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.errors import BusyError, DeadlineError
from deployments.pipelines.core.graph import EachNode, ForkNode, Graph, SwitchNode, compile_steps
from deployments.pipelines.core.items import Flow, Outcome, StageBatch
from deployments.pipelines.core.pipeline_core import PipelineCore
from deployments.pipelines.core.stage_core import StageCore, stage_core
from deployments.pipelines.core.steps import Stage, Step
from deployments.pipelines.planning.scaling import PERIOD_S, DivisionTable, StageScaler
from deployments.pipelines.planning.tandem import profile_of
from policy.errors import InvalidInputError
from policy.objective import ServiceLevelObjective
from policy.table_solving import solve_table

FloatArray = NDArray[np.float64]

_SEED = 15


@dataclass(frozen=True)
class StageRun:
    """Results of one stage over the whole run."""

    name: str
    items: int
    batches: int
    mean_workers: float
    utilization: float


@dataclass(frozen=True, eq=False)
class PipelineRun:
    """The results of a simulated pipeline.

    Attributes
    ----------
    offered, refused, late : int
        All requests; refused requests; requests cancelled at their deadline.
    response_ms : ndarray of float, shape (answered,)
        Response times of the requests that were answered.
    in_time : int
        Requests answered within the SLA's response time.
    stages : tuple of StageRun
    """

    offered: int
    refused: int
    late: int
    response_ms: FloatArray
    in_time: int
    stages: tuple[StageRun, ...]

    @property
    def service_level(self) -> float:
        """The fraction of all requests that was answered in time."""
        return self.in_time / self.offered if self.offered else 1.0


def simulate_pipeline(
    steps: Sequence[Step],
    arrivals_s: Sequence[float] | FloatArray,
    sla: ServiceLevelObjective,
    max_pending: int,
    *,
    refuse: bool = True,
    divisions: DivisionTable | None = None,
    scale_down_delay_s: float = 60.0,
    start_time_s: float = 0.0,
    seed: int = _SEED,
) -> PipelineRun:
    """Simulate a pipeline.

    Parameters
    ----------
    steps : sequence of steps
        Every stage needs a profile. An `Each` gives its expected number of items, a `Switch`
        chooses at random by its shares.
    arrivals_s : array of float, shape (requests,)
        Ascending.
    sla : ServiceLevelObjective
    max_pending : int
        The most requests in the pipeline.
    refuse : bool
        Whether requests that cannot be answered in time are refused.
    divisions : DivisionTable, optional
        By which the stages are resized once a second.
    scale_down_delay_s : float
        How long fewer workers must have been enough.
    start_time_s : float
        From the order of a worker until it takes batches.
    seed : int
        Of the choices of switches.

    Raises
    ------
    InvalidInputError
        A stage has no profile, or the arrivals are not ascending.
    """
    times_s = np.asarray(arrivals_s, dtype=np.float64)
    if np.any(np.diff(times_s) < 0):
        raise InvalidInputError("arrivals: must be ascending")
    graph = compile_steps(steps)
    _expect(graph, np.random.default_rng(seed))
    cores = [_stage_core(stage) for stage in graph.stages]
    core = PipelineCore(graph, cores, max_pending)
    scaler = None
    if divisions is not None:
        scaler = StageScaler(divisions, core, scale_down_delay_s)
    run = _Simulation(core, scaler, start_time_s)
    within_s = 1e-3 * sla.response_time_ms if refuse else math.inf
    run.submit_all(times_s.tolist(), within_s)
    response_ms = np.array(run.response_ms)
    return PipelineRun(
        offered=core.offered,
        refused=core.refused,
        late=core.late,
        response_ms=response_ms,
        in_time=int(np.sum(response_ms <= sla.response_time_ms)),
        stages=tuple(run.stage_run(number) for number in range(len(cores))),
    )


def _expect(graph: Graph, random: np.random.Generator) -> None:
    """Make the nodes of a graph branch as expected, for any value."""

    def chooser(node: SwitchNode) -> Any:
        keys, shares = [*node.shares], [*node.shares.values()]
        return lambda value: keys[random.choice(len(keys), p=shares)]

    for at, node in enumerate(graph.nodes):
        if isinstance(node, SwitchNode):
            graph.nodes[at] = replace(node, choose=chooser(node))
        elif isinstance(node, ForkNode):
            graph.nodes[at] = ForkNode(node.entries, _join, node.next)
        elif isinstance(node, EachNode):
            graph.nodes[at] = ForkNode((node.entry,) * node.expected_items, _join, node.next)


def _join(results: list[Any]) -> None:
    """Return nothing: values do not matter here."""


def _stage_core(stage: Stage) -> StageCore:
    profile_of(stage)  # a branch needs one
    core = stage_core(stage, stage.workers)
    if stage.policy in ("smdp", "auto"):
        core.use(solve_table(*stage.table_problem()))
    return core


class VirtualPipeline:
    """A pipeline core on a virtual clock."""

    def __init__(self, core: PipelineCore) -> None:
        self.core = core
        self.now_s = 0.0
        # Entries: time, order, action, its arguments.
        self._events: list[tuple[float, int, Any, tuple[Any, ...]]] = []
        self._order = 0

    def batch_ms(self, number: int, batch: StageBatch) -> float:
        """Return how long a stage takes for a batch."""
        return self.core.stages[number].latency_ms(len(batch.items))

    def outcome(self, number: int, batch: StageBatch) -> Outcome:
        """Return the outcome of a batch of a stage."""
        return [None] * len(batch.items)

    def flow_ended(self, flow: Flow) -> None:
        """Process a request that has its result or its error."""

    def at(self, time_s: float, action: Any, *arguments: Any) -> None:
        """Schedule a call at a time."""
        self._order += 1
        heapq.heappush(self._events, (time_s, self._order, action, arguments))

    def submit(self, value: Any, deadline_s: float = math.inf) -> Flow:
        """Submit a request now; errors as of `PipelineCore.submit`."""
        flow = self.core.submit(self.now_s, value, deadline_s)
        self.advance()
        return flow

    def advance(self) -> None:
        """Start batches that are due, and process requests that have ended."""
        for number, batch in self.core.next_batches(self.now_s):
            end_s = self.now_s + 1e-3 * self.batch_ms(number, batch)
            self.at(end_s, self._end_batch, number, batch)
        ended, self.core.ended = self.core.ended, []
        for flow in ended:
            self.flow_ended(flow)

    def run(self, until_s: float = math.inf) -> None:
        """Run until `until_s`, or until nothing more happens."""
        while True:
            wake_s = self.core.wake_at_s()
            event_s = self._events[0][0] if self._events else math.inf
            next_s = min(event_s, math.inf if wake_s is None else wake_s)
            if next_s == math.inf or next_s > until_s:
                break
            self.now_s = next_s
            if event_s <= next_s:
                _, _, action, arguments = heapq.heappop(self._events)
                action(*arguments)
            else:
                self.core.tick(self.now_s)
            self.advance()
        if until_s < math.inf:
            self.now_s = max(self.now_s, until_s)

    def _end_batch(self, number: int, batch: StageBatch) -> None:
        self.core.batch_ended(self.now_s, number, batch, self.outcome(number, batch))


class _Simulation(VirtualPipeline):
    """A pipeline whose stages may follow the load, and the results of each stage."""

    def __init__(self, core: PipelineCore, scaler: StageScaler | None, start_time_s: float) -> None:
        super().__init__(core)
        self.response_ms: list[float] = []
        self._scaler, self._start_time_s = scaler, start_time_s
        self._began_s = 0.0
        # The workers of each stage at each decision.
        self._workers = [[stage.workers] for stage in core.stages]

    def submit_all(self, arrivals_s: list[float], within_s: float) -> None:
        """Submit requests at the given times, and run until all have ended."""
        if not arrivals_s:
            return
        self.now_s = self._began_s = arrivals_s[0]
        if self._scaler is not None:
            self.at(self.now_s + PERIOD_S, self._scale, arrivals_s[-1])
        waiting = iter(arrivals_s)

        def arrive() -> None:
            try:
                flow = self.core.submit(self.now_s, None, self.now_s + within_s)
                if within_s < math.inf:
                    self.at(flow.deadline_s, self.core.expire, flow)
            except (BusyError, DeadlineError):
                pass  # the core has counted it
            for next_s in waiting:
                self.at(next_s, arrive)
                break

        self.at(next(waiting), arrive)
        self.run()

    def stage_run(self, number: int) -> StageRun:
        """Return the results of a stage, once the run has ended."""
        stage, elapsed_s = self.core.stages[number], self.now_s - self._began_s
        mean_workers = float(np.mean(self._workers[number]))
        utilization = stage.busy_s / (mean_workers * elapsed_s) if elapsed_s else 0.0
        return StageRun(stage.name, stage.items, stage.batches, mean_workers, utilization)

    def flow_ended(self, flow: Flow) -> None:
        """Record the response time of an answered request."""
        if flow.error is None:
            self.response_ms.append(1e3 * (self.now_s - flow.arrival_s))

    def _scale(self, until_s: float) -> None:
        assert self._scaler is not None
        before = self._scaler.workers
        for number, stage in enumerate(self.core.stages):
            self._workers[number].append(stage.workers)
        for name, workers in self._scaler.decide(self.now_s).items():
            if workers > before[name]:
                self.at(self.now_s + self._start_time_s, self._resize)
        self._resize(at_most=True)
        if self.now_s < until_s:
            self.at(self.now_s + PERIOD_S, self._scale, until_s)

    def _resize(self, *, at_most: bool = False) -> None:
        """Apply the last order, or only what it takes away; workers end after their batch."""
        assert self._scaler is not None
        for number, stage in enumerate(self.core.stages):
            workers = self._scaler.workers[stage.name]
            stage.workers = min(stage.workers, workers) if at_most else workers
            self.core.touch(number)
