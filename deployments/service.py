"""What a replica is, without Ray: a model, its profile, its policy and its batcher."""

import asyncio
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from deployments.batcher.asyncio_batcher import Batcher, BatchRecord
from deployments.config import ModelConfig, UserConfig
from deployments.control.policy_controller import Observations, PolicyController
from deployments.errors import DeadlineError, DeviceError, RequestError
from deployments.http.inference_protocol import InferenceRequest, Signature, Tensors
from deployments.models.base import Model, load_model
from deployments.profiling.measure import measure_profile
from policy.errors import InvalidInputError
from policy.profile import Profile

logger = logging.getLogger("sojourn.service")

#: How long a replica may measure its own profile when its config has none.
PROFILE_BUDGET_S = 1.0
#: A batch that takes this long, or this many times what a full one should, is stuck.
STUCK_AFTER_S = 10.0
STUCK_AFTER_BATCHES = 20
#: How many batches are shown to who asks why they were started.
BATCHES_SHOWN = 20


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
    """One model behind its batcher; the `Service` of `deployments.http.app`.

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
        self.config_error: str | None = None
        self.answers: Counter[int] = Counter()
        self._model = model
        self._profile = profile
        self._controller: PolicyController | None = None
        self._batcher: Batcher | None = None
        self._batches: list[BatchRecord] = []
        self._last_batches: deque[tuple[float, BatchRecord]] = deque(maxlen=BATCHES_SHOWN)
        self._response_times_s: list[float] = []
        self._offered_rows_seen = 0
        self._answered_rows = self._late_rows = 0

    @property
    def batcher(self) -> Batcher:
        """The batcher; there is one once `configure` has succeeded."""
        assert self._batcher is not None
        return self._batcher

    @property
    def controller(self) -> PolicyController:
        """What keeps the batcher's policy; there is one once `configure` has succeeded."""
        assert self._controller is not None
        return self._controller

    @property
    def configured(self) -> bool:
        """Whether a configuration is in force."""
        return self._batcher is not None

    @property
    def ready(self) -> bool:
        """Whether the model can answer."""
        return self.configured and not self.stuck()

    def stuck(self) -> bool:
        """Whether the device is lost, or on one batch for far longer than a full one takes."""
        if self._batcher is None:
            return False
        if self._batcher.lost is not None:
            return True
        full_batch_s = 1e-3 * float(self.controller.profile.latency_ms[-1])
        return self._batcher.busy_for_s() > max(STUCK_AFTER_S, STUCK_AFTER_BATCHES * full_batch_s)

    async def configure(self, user_config: UserConfig) -> None:
        """Take a configuration; its policy table is solved aside, and swapped in whole when ready.

        Until then the policy in force stays; at first that is to start whenever the device is free.

        Raises
        ------
        InfeasibleError
            The SLA asks for less time than a batch of one takes; what was in force stays in force.
        """
        if self._controller is None:
            self._controller = PolicyController(self._profile, user_config, self._advance)
            self._batcher = Batcher(self._model, self._controller.core, self._note_batch)
        else:
            self._controller.configure(user_config)
        limits = user_config.limits
        self.signature = Signature(
            self._model.inputs, self._model.outputs, limits.max_rows_per_request
        )
        self.max_body_bytes = limits.max_body_bytes

    def _note_batch(self, record: BatchRecord) -> None:
        self._batches.append(record)
        self._last_batches.append((time.monotonic(), record))

    def _advance(self) -> None:
        if self._batcher is not None:
            self._batcher.advance()

    async def tick(self) -> Observations:
        """Let the policy follow the world; to be called every `deployments.control.policy_controller.TICK_S`.

        Who waits for a device that hangs is told so: another replica may answer.

        Returns
        -------
        Observations
            What came together since the last call.
        """
        if self.stuck():
            self.batcher.lose_device("the device of this replica does not answer")
        offered_rows = self.batcher.offered_rows
        seen = Observations(
            self._batches.copy(), self._response_times_s, offered_rows - self._offered_rows_seen
        )
        self._batches.clear()
        self._response_times_s = []
        self._offered_rows_seen = offered_rows
        await self.controller.tick(seen)
        return seen

    def has_room(self) -> bool:
        """Whether one more row can wait; what finds no room is counted as refused.

        Raises
        ------
        DeviceError
            The device hangs, or is lost.
        """
        room = self.batcher.core.has_room(1, time.monotonic())
        if not room:
            self.batcher.refuse()
            self.answers[503] += 1
            if self.batcher.lost is not None:
                raise DeviceError(self.batcher.lost)
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
            # A missed deadline is a late answer if it allowed as much time as the SLA does.
            deadline_ms = request.deadline_ms or 0.0
            sla_ms = self.controller.sla_at_replica.response_time_ms
            if isinstance(error, DeadlineError) and deadline_ms >= sla_ms:
                self._count_answer(request.rows, time.monotonic() - arrival_s, late=True)
            raise
        except asyncio.CancelledError:
            # A client that leaves after the SLA's response time has a late answer.
            waited_s = time.monotonic() - arrival_s
            if self._is_late(waited_s):
                self._count_answer(request.rows, waited_s, late=True)
            raise
        self.answers[200] += 1
        response_time_s = time.monotonic() - arrival_s
        self._count_answer(request.rows, response_time_s, late=self._is_late(response_time_s))
        return outputs

    def _is_late(self, response_time_s: float) -> bool:
        return self.controller.sla_at_replica.is_late(1e3 * response_time_s)

    def _count_answer(self, rows: int, response_time_s: float, *, late: bool) -> None:
        self._response_times_s.append(response_time_s)
        self._answered_rows += rows
        if late:
            self._late_rows += rows

    def autoscaling_stats(self) -> dict[str, float]:
        """Give what the autoscaler needs to know of this replica: counters and gauges."""
        batcher, controller = self.batcher, self.controller
        return {
            "offered_total": batcher.offered_rows,
            "refused_total": batcher.refused_rows,
            "completed_total": batcher.completed_rows,
            "queue_length": batcher.core.queue_length,
            "full_batch_size": controller.profile.max_batch_size,
            "full_batch_ms": float(controller.profile.latency_ms[-1]),
            "answered_total": self._answered_rows,
            "late_total": self._late_rows,
            **controller.sla_capacity.to_floats(),
            **controller.user_config.autoscaler.settings().to_floats(),
        }

    def explain(self) -> Mapping[str, Any]:
        """Give the content of `GET /sojourn/policy`."""
        batcher, user_config = self.batcher, self.controller.user_config
        return {
            "model": self.model_name,
            "sla": user_config.sla.model_dump(),
            "sla_in_words": user_config.sla.objective.in_words(),
            "objective": user_config.policy.model_dump(),
            "config_error": self.config_error or self.controller.error,
            "queue_length": batcher.core.queue_length,
            "last_batches": self._explain_batches(),
            "batches_started": {reason.value: count for reason, count in batcher.starts.items()},
            "rows": {
                "offered": batcher.offered_rows,
                "refused": batcher.refused_rows,
                "completed": batcher.completed_rows,
                "late": self._late_rows,
                "deadline_missed": batcher.deadline_missed_rows,
            },
            **self.controller.explain(),
        }

    def _explain_batches(self) -> list[dict[str, Any]]:
        """Say why the last batches were started, the newest first."""
        now_s = time.monotonic()
        return [
            {
                "ended_s_ago": now_s - ended_s,
                "reason": record.reason.value,
                "size": record.size,
                "queue_length_left": record.queue_length,
                "oldest_wait_ms": 1e3 * record.oldest_wait_s,
                "duration_ms": 1e3 * record.duration_s,
                "failed": record.failed,
            }
            for ended_s, record in reversed(self._last_batches)
        ]

    def example_request(self) -> Mapping[str, Any]:
        """Give a valid request of one row, for `GET /sojourn/example`."""
        example = self._model.example(1)

        def data(name: str) -> list[Any]:
            return [_for_people(value) for value in example[name].ravel().tolist()]

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

    async def drain(self, timeout_s: float) -> bool:
        """Take nothing more, and wait until all that was accepted is answered.

        Returns
        -------
        bool
            Whether it was, within `timeout_s`.
        """
        if self._batcher is None:
            return True
        try:
            await asyncio.wait_for(self._batcher.drain(), timeout_s)
        except TimeoutError:
            waiting = self._batcher.core.queue_length
            logger.error("%d rows were not answered within %g s", waiting, timeout_s)
            return False
        return True

    async def close(self) -> None:
        """End the device's thread, and what is being solved."""
        if self._controller is not None:
            await self._controller.close()
        if self._batcher is not None:
            self._batcher.close()


def _for_people(value: Any) -> Any:
    """Make a tensor's element what a person would write in JSON: 7 instead of 7.0, text as text."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


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
