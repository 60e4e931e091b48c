"""What a replica is, without Ray: a model, its profile, its policy table and its batcher."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from deployments.batcher.core import BatcherCore, Limits
from deployments.batcher.shell import Batcher, BatchRecord
from deployments.config import ModelConfig, UserConfig
from deployments.inference_protocol import InferenceRequest, Signature, Tensors
from deployments.models.base import Model, load_model
from deployments.profiling import measure_profile
from policy.profile import Profile
from policy.table import solve_table
from sojourn.errors import InvalidInputError, RequestError

logger = logging.getLogger("sojourn.replica")

#: How long a replica may measure its own profile when its config has none.
PROFILE_BUDGET_S = 1.0
#: A batch that takes this long, or this many times what a full one should, is stuck.
STUCK_AFTER_S = 10.0
STUCK_AFTER_BATCHES = 20


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
        self.response_times_s: list[float] = []
        self.batches: list[BatchRecord] = []
        self._model = model
        self._batcher: Batcher | None = None

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
        """Take a configuration: solve its policy table aside, then swap it in whole.

        Raises
        ------
        InvalidInputError
            It does not fit the model's profile; what was in force stays in force.
        """
        unchanged = self.user_config is not None and (
            self.user_config.objective() == user_config.objective()
        )
        if unchanged:
            table = self.batcher.core.table
        else:
            table = await asyncio.to_thread(solve_table, self.profile, user_config.objective())
        # Who waits for others must still be able to make it with a full batch.
        full_batch_ms = float(self.profile.latency_ms[-1])
        response_time_ms = user_config.sla.response_time_ms
        limits = Limits(
            max_age_ms=max(0.0, response_time_ms - full_batch_ms),
            waiting_room=user_config.waiting_room(self.profile),
            latency_ms=self.profile.latency_ms.tolist(),
            head_start_ms=response_time_ms,
        )
        if self._batcher is None:
            core = BatcherCore(table, limits)
            self._batcher = Batcher(self._model, core, self.batches.append)
        else:
            self._batcher.core.use(table, limits)
            self._batcher.advance()
        self.signature = Signature(
            self._model.inputs, self._model.outputs, user_config.limits.max_rows_per_request
        )
        self.max_body_bytes = user_config.limits.max_body_bytes
        self.user_config = user_config

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
            outputs = await self.batcher.submit(request.inputs, request.rows, arrival_s)
        except RequestError as error:
            self.answers[error.status] += 1
            raise
        self.answers[200] += 1
        self.response_times_s.append(time.monotonic() - arrival_s)
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

    def close(self) -> None:
        """End the device's thread."""
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
