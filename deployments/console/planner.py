"""Answer the console's what-if questions in a worker process, one at a time."""

import asyncio
import pickle
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from pydantic import Field

from autoscaler.worker import WorkerError
from deployments.config.validation import StrictModel, validate
from deployments.control.worker_process import WorkerProcess
from deployments.errors import NotFoundError, PlannerBusyError
from policy.errors import SojournError
from policy.profile import Profile
from policy.try_delays import TryDelays

#: Limit on the time of a plan, with the start of the worker; most take a second or two.
TIME_LIMIT_S = 45.0
#: Further questions are refused at once.
MAX_WAITING = 8

#: A function of the worker (``module:name``), its arguments and keyword arguments.
Call = tuple[str, tuple[Any, ...], dict[str, Any]]


class Scenario(StrictModel):
    """An SLA, a load, and the prices of replicas and energy."""

    response_time_ms: float = Field(gt=0, le=1e7)
    percentile: float = Field(gt=1, lt=100)
    #: Requests per second, over all replicas.
    arrival_rate_per_s: float = Field(gt=0, le=1e7)
    burst_factor: float = Field(default=1.0, ge=1, le=1e3)
    #: As `policy.energy_weight` with a latency weight of 1. None: least energy under the SLA.
    energy_weight: float | None = Field(default=None, ge=0, le=1e6)
    #: Per kWh. None: minimize replicas instead of the cost.
    energy_price: float | None = Field(default=None, ge=0, le=1e6)
    #: Per replica and hour, in the currency of the energy.
    replica_price: float = Field(default=0.0, ge=0, le=1e6)


Asked = TypeVar("Asked", bound=StrictModel)


class Question(StrictModel, Generic[Asked]):
    """The present scenario and an alternative."""

    now: Asked
    then: Asked
    #: Name of the model; None: the deployment's own.
    model: str | None = None

    def calls(self, function: str, *arguments: Any) -> dict[str, Call]:
        """Return calls of a function of these arguments with each scenario's values."""
        scenarios = (("now", self.now), ("then", self.then))
        return {name: (function, arguments, one.model_dump()) for name, one in scenarios}


def calls_for_model(reports: Sequence[Mapping[str, Any]], content: Any) -> dict[str, Call]:
    """Return calls that plan the replicas of a model with its current profile and delays.

    `InvalidInputError` if the question is not valid, `NotFoundError` if there is no such model.
    """
    question = validate(Question[Scenario], content)
    for report in reports:
        if question.model in (None, report["model"]):
            profile = Profile.from_dict(report["profile"])
            delays = TryDelays(**report["try_delays"])
            return question.calls("deployments.console.replica_plan:plan", profile, delays)
    raise NotFoundError(f"there is no model {question.model!r:.100}")


class Planner:
    """Answer questions in a worker process."""

    def __init__(self) -> None:
        self._worker = WorkerProcess("the planner")
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._latest: dict[bytes, Any] = {}

    async def ask(self, calls: Mapping[str, Call]) -> dict[str, Any]:
        """Return the results of calls by name, or ``{"error": why}`` for a call without a plan.

        `PlannerBusyError` if too many questions wait, `WorkerError` if the worker died or took too
        long.
        """
        if self._waiting > MAX_WAITING:
            raise PlannerBusyError("the planner is busy; ask again")
        self._waiting += 1
        try:
            async with self._lock:
                keys = {name: pickle.dumps(call) for name, call in calls.items()}
                plans: dict[bytes, Any] = {}
                for name, call in calls.items():
                    known = plans | self._latest  # usually only one scenario changes
                    plans[keys[name]] = known.get(keys[name]) or await self._plan(call)
                self._latest = plans
                return {name: plans[key] for name, key in keys.items()}
        except WorkerError as error:
            raise WorkerError(f"{error}; ask again, or for something simpler") from error
        finally:
            self._waiting -= 1

    async def _plan(self, call: Call) -> Any:
        function, arguments, options = call
        try:
            return await self._worker.ask(
                function, *arguments, **options, time_limit_s=TIME_LIMIT_S
            )
        except WorkerError:
            raise
        except SojournError as error:
            return {"error": str(error)}

    def close(self) -> None:
        """Stop the worker; the next question starts another."""
        self._worker.close()
