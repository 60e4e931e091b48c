"""A replica without Ray: a model, its profile, its policy controller and its batcher."""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from autoscaler.reports import bottleneck_to_floats
from deployments.batcher.asyncio_batcher import Batcher
from deployments.batcher.front_meter import FrontMeter
from deployments.config import ModelConfig, UserConfig
from deployments.control.observations import Observations, ReplicaObserver
from deployments.control.policy_controller import PolicyController
from deployments.errors import DeadlineError, DeviceError, RequestError
from deployments.example_request import example_request
from deployments.http.inference_protocol import (
    InferenceRequest,
    Signature,
    Tensors,
    claimed_rows,
)
from deployments.models.base import Model, load_model
from deployments.profiling.measure import measure_profile
from policy.errors import InvalidInputError
from policy.profile import Profile

logger = logging.getLogger("sojourn.service")

#: How long a starting replica may measure its own profile, if it has none.
PROFILE_BUDGET_S = 1.0
#: The device is stuck if one batch takes longer than this, and than this many full batches.
STUCK_AFTER_S = 10.0
STUCK_AFTER_BATCHES = 20


def resolve_device(device: str) -> str:
    """Return `device`; for ``auto``, ``cuda`` if this process has a GPU, else ``cpu``."""
    if device != "auto":
        return device
    import torch  # here, because importing this module must not load torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def profile_of(config: ModelConfig, model: Model, device: str) -> Profile:
    """Return the profile in the config, else the model's own, else measure one.

    Parameters
    ----------
    config : ModelConfig
    model : Model
        The loaded model.
    device : str
        ``cpu`` or ``cuda``.

    Raises
    ------
    InvalidInputError
        The profile in the config is invalid.
    """
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

    Call `configure` before anything else.

    Parameters
    ----------
    config : ModelConfig
        The model's configuration.
    model : Model
        The loaded model.
    profile : Profile
        The model's profile on this device.

    Attributes
    ----------
    config_error : str or None
        Why the latest configuration was rejected; the adapter that reads configurations sets it.
    answers : Counter of int
        Inference requests by the HTTP status of their answer.
    shares_cpu : bool
        Whether batches are computed on the CPU that the event loop runs on.
    """

    platform = "python"

    def __init__(self, config: ModelConfig, model: Model, profile: Profile) -> None:
        self.model_name = config.name
        self.model_version = config.version
        self.signature = Signature(model.inputs, model.outputs, max_rows=1)
        self.max_body_bytes = 0
        self.config_error: str | None = None
        self.answers: Counter[int] = Counter()
        self.shares_cpu = False
        self._model = model
        self._profile = profile
        self._controller: PolicyController | None = None
        self._batcher: Batcher | None = None
        self._observer: ReplicaObserver | None = None
        self._front_meter: FrontMeter | None = None
        self._counting_since_s = time.monotonic()

    @property
    def batcher(self) -> Batcher:
        """The batcher; `configure` creates it."""
        assert self._batcher is not None
        return self._batcher

    @property
    def controller(self) -> PolicyController:
        """The controller of the batcher's policy; `configure` creates it."""
        assert self._controller is not None
        return self._controller

    @property
    def observer(self) -> ReplicaObserver:
        """The counts of batches and answers; `configure` creates it."""
        assert self._observer is not None
        return self._observer

    @property
    def front_meter(self) -> FrontMeter:
        """The meter of the event loop; `configure` creates it."""
        assert self._front_meter is not None
        return self._front_meter

    @property
    def configured(self) -> bool:
        """Whether a configuration is in force."""
        return self._batcher is not None

    @property
    def ready(self) -> bool:
        """Whether the model can answer."""
        return self.configured and not self.stuck()

    def stuck(self) -> bool:
        """Return whether the device is lost, or hangs: one batch takes far too long."""
        if self._batcher is None:
            return False
        if self._batcher.lost_reason is not None:
            return True
        full_batch_s = 1e-3 * float(self.controller.profile.latency_ms[-1])
        return self._batcher.busy_for_s() > max(STUCK_AFTER_S, STUCK_AFTER_BATCHES * full_batch_s)

    async def configure(self, user_config: UserConfig) -> None:
        """Apply a configuration; its policy takes effect as soon as it is solved.

        Until then the current policy stays. The first one starts a batch whenever the device is
        free.

        Raises
        ------
        InfeasibleError
            The SLA allows less time than a batch of one takes. The old configuration stays.
        """
        if self._controller is None:
            self._controller = PolicyController(self._profile, user_config, self._advance)
            self._front_meter = FrontMeter.on_loop(asyncio.get_running_loop())
            self._observer = ReplicaObserver(self._controller.sla_at_replica, self._front_meter)
            self._batcher = Batcher(self._model, self._controller.core, self._observer.batch_ended)
            self._counting_since_s = time.monotonic()
        else:
            self._controller.configure(user_config)
            self.observer.sla = self._controller.sla_at_replica
        limits = user_config.limits
        self.signature = Signature(
            self._model.inputs, self._model.outputs, limits.max_rows_per_request
        )
        self.max_body_bytes = limits.max_body_bytes

    def _advance(self) -> None:
        if self._batcher is not None:
            self._batcher.advance()

    async def tick(self) -> Observations:
        """Adjust the policy to what was observed, and give up a device that hangs.

        To be called every `deployments.control.policy_controller.TICK_S`.

        Returns
        -------
        Observations
            What was observed since the last call.
        """
        if self.stuck():
            self.batcher.lose_device("the device of this replica does not answer")
        seen = self.observer.take(
            self.batcher.arrival_counts.take(time.monotonic()), shares_cpu=self.shares_cpu
        )
        await self.controller.tick(seen)
        return seen

    def has_room(self, body: bytes) -> bool:
        """Return whether one more row may wait; if not, count the rows of `body` as refused.

        Raises
        ------
        DeviceError
            There is no room because the device is lost.
        """
        room = self.batcher.core.has_room(1, time.monotonic())
        if not room:
            self.batcher.count_refused(claimed_rows(body, self.signature.max_rows))
            self.answers[503] += 1
            if self.batcher.lost_reason is not None:
                raise DeviceError(self.batcher.lost_reason)
        return room

    async def infer(self, request: InferenceRequest, arrival_s: float) -> Tensors:
        """Answer a checked request.

        Parameters
        ----------
        request : InferenceRequest
        arrival_s : float
            When it reached this process, by `time.monotonic`. Its deadline counts from here.

        Returns
        -------
        mapping of str to ndarray
            The model's outputs, each of shape ``(rows, ...)``.

        Raises
        ------
        RequestError
            As `Batcher.submit`.
        """
        deadline_ms = math.inf if request.deadline_ms is None else request.deadline_ms
        try:
            outputs = await self.batcher.submit(
                request.inputs,
                request.rows,
                arrival_s,
                arrival_s + 1e-3 * deadline_ms,
                request.priority,
            )
        except RequestError as error:
            self.answers[error.status] += 1
            if isinstance(error, DeadlineError):
                waited_s = time.monotonic() - arrival_s
                self.observer.deadline_missed(request.rows, waited_s, deadline_ms)
            raise
        except asyncio.CancelledError:
            self.observer.client_left(request.rows, time.monotonic() - arrival_s)
            raise
        self.answers[200] += 1
        self.observer.answered(request.rows, time.monotonic() - arrival_s)
        return outputs

    def autoscaling_stats(self) -> dict[str, float]:
        """Return what the autoscaler is told of this replica: counters, gauges and settings."""
        batcher, controller = self.batcher, self.controller
        return {
            "offered_total": batcher.offered_rows,
            "refused_total": batcher.refused_rows,
            "completed_total": batcher.completed_rows,
            "queue_length": batcher.core.queue_length,
            "full_batch_size": batcher.core.limits.max_batch_size,
            "full_batch_ms": batcher.core.limits.latency_ms[-1],
            "answered_total": self.observer.answered_rows,
            "late_total": self.observer.late_rows,
            "counted_s": time.monotonic() - self._counting_since_s,
            **controller.sla_capacity.to_floats(),
            **bottleneck_to_floats(controller.bottleneck),
            **controller.user_config.autoscaler.settings().to_floats(),
        }

    def explain(self) -> Mapping[str, Any]:
        """Return the content of `GET /sojourn/policy`."""
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
                "late": self.observer.late_rows,
                "deadline_missed": batcher.deadline_missed_rows,
                "expired": batcher.expired_rows,
            },
            **self.controller.explain(),
        }

    def _explain_batches(self) -> list[dict[str, Any]]:
        """Return the last batches with the reasons for starting them, newest first."""
        now_s = time.monotonic()
        return [
            {
                "ended_s_ago": now_s - ended_s,
                "reason": record.reason.value,
                "size": record.size,
                "queue_length_left": record.queue_length_left,
                "oldest_wait_ms": 1e3 * record.oldest_wait_s,
                "duration_ms": 1e3 * record.duration_s,
                "failed": record.failed,
            }
            for ended_s, record in reversed(self.observer.last_batches)
        ]

    def example_request(self) -> Mapping[str, Any]:
        """Return a valid request of one row, for `GET /sojourn/example`."""
        return example_request(self._model)

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new requests, and wait until the accepted ones are answered.

        Returns
        -------
        bool
            Whether all were answered within `timeout_s`.
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
        """End the device thread, and cancel an unfinished solve."""
        if self._controller is not None:
            await self._controller.close()
        if self._batcher is not None:
            self._batcher.close()


def load_service(config: ModelConfig) -> InferenceService:
    """Load a model, run it once to warm it up, and return its service.

    Raises
    ------
    InvalidInputError
        The model or its profile cannot be loaded, or the profile exceeds `max_batch_size`.
    """
    device = resolve_device(config.device)
    model = load_model(config.import_path, config.options, device)
    profile = profile_of(config, model, device)
    if profile.max_batch_size > config.max_batch_size:
        raise InvalidInputError(
            f"model: the profile goes to batch size {profile.max_batch_size}, which exceeds "
            f"max_batch_size {config.max_batch_size}"
        )
    model.forward(model.example(1))
    return InferenceService(config, model, profile)
