"""What a replica is, without Ray: a model, its profile, its policy table and its batcher."""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.batcher.core import BatcherCore, Limits, PolicySource
from deployments.batcher.shell import Batcher, BatchRecord
from deployments.config import ModelConfig, UserConfig
from deployments.inference_protocol import InferenceRequest, Signature, Tensors
from deployments.learning import LatencyLearner, WaitCorrection
from deployments.models.base import Model, load_model
from deployments.profiling import measure_profile
from deployments.solver import solve_aside, work_conserving_table
from policy.burstiness import DispersionMeter
from policy.objective import Objective, ServiceLevelObjective
from policy.profile import Profile
from policy.response_time import evaluate
from policy.table import PolicyTable
from sojourn.errors import InvalidInputError, RequestError, SojournError

logger = logging.getLogger("sojourn.replica")

#: How long a replica may measure its own profile when its config has none.
PROFILE_BUDGET_S = 1.0
#: A batch that takes this long, or this many times what a full one should, is stuck.
STUCK_AFTER_S = 10.0
STUCK_AFTER_BATCHES = 20
#: How often `InferenceService.tick` is to be called.
TICK_S = 1.0
#: After how many ticks it predicts anew, and looks whether the profile still holds. Twice in a row
#: it must not, before it is refitted: a new table costs a core for a second or more.
PREDICT_EVERY = 5
REVISE_EVERY = 10
#: Change of the index of dispersion below which the table stays.
DISPERSION_STEP = 0.1
PERCENTILES = (50.0, 95.0, 99.0)
#: Closer to the capacity than this a prediction takes long and says little.
PREDICTABLE_INTENSITY = 0.97

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Observations:
    """What came together in a replica since the last tick."""

    batches: list[BatchRecord]
    response_times_s: list[float]


def resolve_device(device: str) -> str:
    """Turn ``auto`` into ``cuda`` where there is a GPU for this process, else ``cpu``."""
    if device != "auto":
        return device
    import torch  # the autoscaler and the tools that read a config need no torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def profile_of(config: ModelConfig, model: Model, device: str) -> Profile:
    """Give the profile of the config, else the model's own, else measure one."""
    profile = config.load_profile() or model.profile()
    if profile is None:
        profile = measure_profile(
            model,
            model_name=config.name,
            device=device,
            max_batch_size=config.max_batch_size,
            budget_s=PROFILE_BUDGET_S,
        )
    return profile


class InferenceService:
    """One model behind its batcher; the `Service` of `deployments.asgi`.

    Parameters
    ----------
    config : ModelConfig
        Which model.
    model : Model
        The loaded model.
    profile : Profile
        What it costs here.
    """

    platform = "python"

    def __init__(self, config: ModelConfig, model: Model, profile: Profile) -> None:
        self.model_name = config.name
        self.model_version = config.version
        self.signature = Signature(model.inputs, model.outputs, max_rows=1)
        self.max_body_bytes = 0
        self.profile = profile
        self.user_config: UserConfig | None = None
        self.config_error: str | None = None
        self.answers: Counter[int] = Counter()
        self.profile_revisions = 0
        self._model = model
        self._batcher: Batcher | None = None
        self._batches: list[BatchRecord] = []
        self._response_times_s: list[float] = []
        # What follows the world: see `tick`.
        self._solved: PolicyTable | None = None
        self._solving: asyncio.Task[None] | None = None
        self._learner = LatencyLearner(profile)
        self._correction = WaitCorrection()
        self._dispersion = DispersionMeter()
        self._index_of_dispersion = 1.0
        self._offered_rows_seen = 0
        self._ticks = 0
        self._measured_ms: dict[str, float] = {}
        self._predicted_ms: dict[str, float] = {}

    @property
    def batcher(self) -> Batcher:
        """The batcher; there is one once `configure` has succeeded."""
        assert self._batcher is not None
        return self._batcher

    @property
    def ready(self) -> bool:
        """Whether the model can answer."""
        return self._batcher is not None and not self.stuck()

    def stuck(self) -> bool:
        """Whether the device has been on one batch for far longer than a full one takes."""
        limit_s = max(
            STUCK_AFTER_S, STUCK_AFTER_BATCHES * 1e-3 * float(self.profile.latency_ms[-1])
        )
        return self._batcher is not None and self._batcher.busy_for_s() > limit_s

    async def configure(self, user_config: UserConfig) -> None:
        """Take a configuration; its policy table is solved aside, and swapped in whole when ready.

        Until then the policy in force stays; at first that is to start whenever the device is free.

        Raises
        ------
        InfeasibleError
            The SLA asks for less time than a batch of one takes; what was in force stays in force.
        """
        objective = user_config.objective(self.profile)
        first_table = work_conserving_table(self.profile, objective)
        if self._batcher is None:
            core = BatcherCore(first_table, self._limits(user_config))
            self._batcher = Batcher(self._model, core, self._batches.append)
        changed = self.user_config is None or self.user_config.objective(self.profile) != objective
        self.user_config = user_config
        self.signature = Signature(
            self._model.inputs, self._model.outputs, user_config.limits.max_rows_per_request
        )
        self.max_body_bytes = user_config.limits.max_body_bytes
        self._use(self.batcher.core.table)
        if changed:
            self._solve(objective)

    def _limits(self, user_config: UserConfig) -> Limits:
        response_time_ms = user_config.sla.response_time_ms
        return Limits(
            # Who waits for others must still be able to make it with a full batch.
            max_age_ms=max(0.0, response_time_ms - float(self.profile.latency_ms[-1])),
            waiting_room=user_config.waiting_room(self.profile),
            latency_ms=self.profile.latency_ms.tolist(),
            head_start_ms=response_time_ms,
        )

    def _use(self, table: PolicySource) -> None:
        assert self.user_config is not None
        self.batcher.core.use(table, self._limits(self.user_config))
        self.batcher.advance()

    def _solve(self, objective: Objective) -> None:
        """Have the table solved aside; a solution for what is asked for no more is dropped."""
        if self._solving is not None:
            self._solving.cancel()
        self._solving = asyncio.create_task(self._solve_and_use(objective))

    async def _solve_and_use(self, objective: Objective) -> None:
        try:
            self._solved = await solve_aside(self.profile, objective)
        except SojournError as error:
            self.config_error = str(error)
            logger.error("the policy in force stays: %s", error)
            return
        self._use_for_bursts()

    def _use_for_bursts(self) -> None:
        """Put the solved table in force, its waits cut to what bursts allow under an SLA."""
        assert self._solved is not None
        assert self.user_config is not None
        objective = self.user_config.objective(self.profile)
        table = self._solved
        if isinstance(objective, ServiceLevelObjective):
            table = table.for_bursts(self._index_of_dispersion, TICK_S)
        self._use(table)

    async def tick(self) -> Observations:
        """Follow the world; to be called every `TICK_S`.

        The profile is refitted to the batches that were run, and the table solved for it; the
        table's waits are cut to what bursts allow, and cut further while more requests are late
        than the SLA allows, whatever the model says.

        Returns
        -------
        Observations
            What came together since the last call.
        """
        user_config, batcher = self.user_config, self.batcher
        assert user_config is not None
        seen = Observations(self._batches.copy(), self._response_times_s)
        self._batches.clear()
        self._response_times_s = []
        self._correct_waits(np.array(seen.response_times_s), user_config)
        self._dispersion.observe(batcher.offered_rows - self._offered_rows_seen)
        self._offered_rows_seen = batcher.offered_rows
        for record in seen.batches:
            if not record.failed:
                self._learner.observe(record.size, 1e3 * record.duration_s)
        self._ticks += 1
        profile = self._learner.revise() if self._ticks % REVISE_EVERY == 0 else None
        index = self._dispersion.index
        if profile is not None:
            self.profile = profile
            self.profile_revisions += 1
            self._use(batcher.core.table)
            self._solve(user_config.objective(profile))
            logger.warning("batches take other than the profile says: it is refitted")
        elif self._solved and abs(index - self._index_of_dispersion) > DISPERSION_STEP:
            self._index_of_dispersion = index
            self._use_for_bursts()
        if self._ticks % PREDICT_EVERY == 0:
            await self._predict()
        return seen

    def _correct_waits(self, response_times_s: FloatArray, user_config: UserConfig) -> None:
        sla = user_config.sla
        late = int(np.count_nonzero(response_times_s > 1e-3 * sla.response_time_ms))
        self.batcher.core.wait_factor = self._correction.revise(
            response_times_s.size, late, 1 - 1e-2 * sla.percentile
        )
        if response_times_s.size:
            quantiles_ms = 1e3 * np.percentile(response_times_s, PERCENTILES)
            self._measured_ms = {
                f"{p:g}": float(ms) for p, ms in zip(PERCENTILES, quantiles_ms, strict=True)
            }

    async def _predict(self) -> None:
        """Predict the response times at the rate seen, beside the requests."""
        now_s = time.monotonic()
        core = self.batcher.core
        rate_per_s, policy = core.arrival_rate.per_s(now_s), core.policy(now_s)
        if core.longest_wait_ms(policy) < (policy.max_wait_ms or math.inf):
            policy = replace(policy, max_wait_ms=core.longest_wait_ms(policy))
        self._predicted_ms = {}
        if 0 < rate_per_s < PREDICTABLE_INTENSITY * self.profile.capacity_per_s:
            try:
                predicted = await asyncio.to_thread(evaluate, self.profile, policy, rate_per_s)
                self._predicted_ms = {
                    f"{p:g}": predicted.response_percentile_ms(p) for p in PERCENTILES
                }
            except SojournError as error:
                logger.info("no prediction: %s", error)

    def has_room(self) -> bool:
        """Whether one more row can wait; what finds no room is counted as refused."""
        room = self.batcher.core.has_room(1)
        if not room:
            self.batcher.refuse()
            self.answers[503] += 1
        return room

    async def infer(self, request: InferenceRequest, arrival_s: float) -> Tensors:
        """Answer a checked request that reached the process at `arrival_s`."""
        try:
            outputs = await self.batcher.submit(
                request.inputs,
                request.rows,
                arrival_s,
                math.inf if request.deadline_ms is None else arrival_s + 1e-3 * request.deadline_ms,
                request.priority,
            )
        except RequestError as error:
            self.answers[error.status] += 1
            raise
        self.answers[200] += 1
        self._response_times_s.append(time.monotonic() - arrival_s)
        return outputs

    def autoscaling_stats(self) -> dict[str, float]:
        """Give what the autoscaler needs to know of this replica: counters and gauges."""
        batcher, user_config = self.batcher, self.user_config
        assert user_config is not None
        settings = user_config.autoscaler.settings().to_floats()
        return {
            "offered_total": batcher.offered_rows,
            "refused_total": batcher.refused_rows,
            "completed_total": batcher.completed_rows,
            "queue_length": batcher.core.queue_length,
            "full_batch_size": self.profile.max_batch_size,
            "full_batch_ms": float(self.profile.latency_ms[-1]),
            "sla_response_time_ms": user_config.sla.response_time_ms,
            "sla_percentile": user_config.sla.percentile,
            **settings,
        }

    def explain(self) -> Mapping[str, Any]:
        """Give the content of `GET /sojourn/policy`."""
        batcher, user_config = self.batcher, self.user_config
        assert user_config is not None
        now_s = time.monotonic()
        policy = batcher.core.policy(now_s)
        return {
            "model": self.model_name,
            "sla": user_config.sla.model_dump(),
            "sla_in_words": user_config.sla.in_words(),
            "objective": user_config.policy.model_dump(),
            "config_error": self.config_error,
            "table": "solved" if self._solved and not self._is_solving() else "solving",
            "profile_revisions": self.profile_revisions,
            "index_of_dispersion": self._dispersion.index,
            "wait_factor": batcher.core.wait_factor,
            "measured_ms": self._measured_ms,
            "predicted_ms": self._predicted_ms,
            "arrival_rate_per_s": batcher.core.arrival_rate.per_s(now_s),
            "control_limit": policy.control_limit,
            "actions": policy.actions,
            "max_wait_ms": policy.max_wait_ms,
            "max_age_ms": batcher.core.limits.max_age_ms,
            "queue_length": batcher.core.queue_length,
            "waiting_room": batcher.core.limits.waiting_room,
            "batches_started": {reason.value: count for reason, count in batcher.starts.items()},
            "rows": {
                "offered": batcher.offered_rows,
                "refused": batcher.refused_rows,
                "completed": batcher.completed_rows,
                "late": batcher.late_rows,
            },
            "profile": self.profile.to_dict(),
        }

    def _is_solving(self) -> bool:
        return self._solving is not None and not self._solving.done()

    def example_request(self) -> Mapping[str, Any]:
        """Give a valid request of one row, for `GET /sojourn/example`."""
        example = self._model.example(1)

        def data(name: str) -> list[Any]:
            values = example[name].ravel().tolist()
            # 7 instead of 7.0: the example is for people to paste.
            return [int(value) if value == round(value) else value for value in values]

        inputs = [
            {
                "name": spec.name,
                "datatype": spec.datatype,
                "shape": [1, *spec.shape],
                "data": data(spec.name),
            }
            for spec in self._model.inputs
        ]
        return {"inputs": inputs}

    async def close(self) -> None:
        """End the device's thread, and what is being solved."""
        if self._solving is not None:
            self._solving.cancel()
            await asyncio.gather(self._solving, return_exceptions=True)
        if self._batcher is not None:
            self._batcher.close()


def load_service(config: ModelConfig) -> InferenceService:
    """Load the model that `config` names, warm it, and make its service.

    Raises
    ------
    InvalidInputError
        The model or its profile cannot be had.
    """
    device = resolve_device(config.device)
    model = load_model(config.import_path, config.options, device)
    profile = profile_of(config, model, device)
    if profile.max_batch_size > config.max_batch_size:
        raise InvalidInputError(
            f"model: the profile goes to batch size {profile.max_batch_size}, max_batch_size is "
            f"{config.max_batch_size}"
        )
    model.forward(model.example(1))
    return InferenceService(config, model, profile)
