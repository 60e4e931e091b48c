"""A pipeline as the service of `deployments.http.app`: each row of a request is one item."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deployments.batcher.event_loop_meter import EventLoopMeter
from deployments.batcher.queued_request import Cancellable, Outcome
from deployments.errors import ModelError, RequestError, StartError
from deployments.http.inference_protocol import InferenceRequest
from deployments.http.service import Service
from deployments.http.signature import Signature, Tensors
from deployments.models.base import TensorSpec
from deployments.models.example_request import example_request
from deployments.models.outputs import fit_output
from deployments.observability.last_minute import LastMinute
from deployments.observability.process import process_report
from deployments.observability.request_info import RequestInfo
from deployments.pipelines.core.errors import StageError
from deployments.pipelines.core.items import Flow
from deployments.pipelines.pipeline import Pipeline
from deployments.pipelines.serving.autoscaler import PipelineAutoscaler
from deployments.pipelines.serving.config import PipelineConfig, PipelineUserConfig
from deployments.pipelines.serving.planning import planning_calls
from deployments.pipelines.serving.step_config import import_function
from deployments.pipelines.workers.replicas import ReplicaAccess
from policy.batcher.requests import Refusal

logger = logging.getLogger("sojourn.pipelines")

COUNT_EVERY_S = 1.0


class PipelineService(Service):
    """A pipeline behind an HTTP interface.

    An item is a mapping from the names of the inputs to their values in one row. The result of the
    last step is a mapping from the names of the outputs, or, of a single output, its value.
    Without a `user_config` the defaults hold, and nothing is scaled, until `configure` brings one.
    """

    platform = "pipeline"

    def __init__(
        self,
        config: PipelineConfig,
        user_config: PipelineUserConfig | None,
        replicas: Mapping[str, ReplicaAccess] | None = None,
    ) -> None:
        super().__init__(config.name, config.version)
        self.config = config
        steps = config.build()
        self.pipeline = Pipeline(steps, replicas=replicas, **config.expert.model_dump())
        self.planning = partial(planning_calls, steps, config.worker_costs(), self.pipeline)
        self._inputs = tuple(tensor.spec for tensor in config.inputs)
        self._outputs = tuple(tensor.spec for tensor in config.outputs)
        self.pipeline.core.finish = self._outputs_of
        self._example = None if config.example is None else import_function(config.example)
        self._started = False
        self.autoscaler = None
        if config.autoscaling is not None:
            self.autoscaler = PipelineAutoscaler(self.pipeline, steps, config)
        self._counting: asyncio.Task[None] | None = None
        self.last_minute = LastMinute(time.monotonic())
        #: The event loop keeps only weak references to tasks.
        self._calls: set[asyncio.Task[None]] = set()
        self.configured = user_config is not None
        self._apply(user_config or PipelineUserConfig())

    async def configure(self, user_config: PipelineUserConfig) -> None:
        """Apply a configuration, after a plan for another SLA; errors as of the plan."""
        sla = user_config.sla.objective
        if self.autoscaler is not None and self._started and sla != self.autoscaler.sla:
            await self.autoscaler.plan(sla)
        self._apply(user_config)
        self.configured = True

    def _apply(self, user_config: PipelineUserConfig) -> None:
        self.tracing.configure(user_config.tracing)
        self.access.configure(user_config.access)
        self.user_config = user_config
        self.pipeline.sla = (
            user_config.sla.objective if user_config.limits.late == "refuse" else None
        )
        self.signature = Signature(
            self._inputs, self._outputs, user_config.limits.max_rows_per_request
        )
        self.max_body_bytes = user_config.limits.max_body_bytes

    async def start(self) -> None:
        """Start all workers and check the example, or raise `StartError`, or as a plan does."""
        self.event_loop_meter = EventLoopMeter.on_loop(asyncio.get_running_loop())
        if self.autoscaler is not None and self.configured:
            await self.autoscaler.plan(self.user_config.sla.objective)
        await self.pipeline.start()
        await self._check_example()
        self._started = True
        self._counting = asyncio.create_task(self._count_forever())
        if self.autoscaler is not None:
            self.autoscaler.start()

    async def _check_example(self) -> None:
        if self._example is None:
            return
        try:
            # A stream has no SLA, and the first batches may be slow.
            async for result in self.pipeline.stream([self._example()]):
                if isinstance(result, Exception):
                    raise result
        except Exception as error:
            await self.pipeline.close()
            raise StartError(f"the pipeline failed on its example: {error}") from error

    async def close(self) -> None:
        self.tracing.close()
        if self._counting is not None:
            self._counting.cancel()
        if self.autoscaler is not None:
            self.autoscaler.close()
        await self.pipeline.close()

    async def _count_forever(self) -> None:
        core = self.pipeline.core
        while True:
            await asyncio.sleep(COUNT_EVERY_S)
            counts = {
                "completed": core.completed,
                "answered": core.completed + core.late,
                "late": core.late,
                "refused": core.refused,
                "failed": core.failed,
                **self.refusals(),
            }
            self.last_minute.add(time.monotonic(), counts)

    @property
    def ready(self) -> bool:
        return (
            self._started
            and not self.draining
            and all(stage.workers > 0 for stage in self.pipeline.core.stages)
        )

    def admit(self, arrival_s: float, now_s: float, priority: int = 0) -> Refusal | None:
        core = self.pipeline.core
        return Refusal.FULL if len(core.open) >= core.max_pending else None

    def count_rejected(
        self, refusal: Refusal, requests: Sequence[tuple[float, int]], now_s: float
    ) -> None:
        self._count_refused(sum([rows for _, rows in requests]))

    def count_answered(self, rows: int, arrival_s: float) -> None: ...

    def _count_refused(self, rows: int) -> None:
        core = self.pipeline.core
        core.offered += rows
        core.count_refused(core.bottleneck(), rows)

    def infer_nowait(
        self,
        request: InferenceRequest,
        arrival_s: float,
        on_done: Callable[[Outcome], None],
        info: RequestInfo | None = None,
    ) -> Cancellable:
        async def run() -> None:
            try:
                outcome: Outcome = await self._infer(request, arrival_s)
            except RequestError as error:
                outcome = error
            except Exception:
                logger.exception("internal error while answering a request")
                outcome = ModelError("internal error while answering this request")
            on_done(outcome)

        task = asyncio.create_task(run())
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return task

    async def _infer(self, request: InferenceRequest, arrival_s: float) -> Tensors:
        """Answer a request; if a row fails, the others are cancelled."""
        flows: list[Flow] = []
        try:
            for row in range(request.rows):
                try:
                    flow = self.pipeline.submit(
                        {name: array[row] for name, array in request.inputs.items()},
                        timeout_ms=request.deadline_ms,
                        arrival_s=arrival_s,
                    )
                except RequestError:
                    self._count_refused(request.rows - row - 1)  # they count as load
                    raise
                flows.append(flow)
            results = await asyncio.gather(*(self.pipeline.result(flow) for flow in flows))
        except StageError as error:
            logger.warning("%s", error, exc_info=error.cause)
            raise error.for_client() from None
        finally:
            for flow in flows:
                self.pipeline.give_up(flow)
        return {
            spec.name: np.stack([result[spec.name] for result in results]) for spec in self._outputs
        }

    def _outputs_of(self, result: Any) -> Tensors:
        """Return the outputs of one row; `ModelError` if they are not as declared."""
        if len(self._outputs) == 1 and not isinstance(result, Mapping):
            result = {self._outputs[0].name: result}
        try:
            return {spec.name: _fit_row(spec, result[spec.name]) for spec in self._outputs}
        except ModelError as error:
            logger.error("the pipeline's result is not its outputs: %s", error)
            raise
        except Exception as error:
            logger.error("the pipeline's result is not its outputs: %r", error)
            raise ModelError("the pipeline returned something else than its outputs") from None

    def explain(self) -> Mapping[str, Any]:
        now_s = time.monotonic()
        keys = ("control_limit", "max_batch_size", "max_wait_ms")
        policies = {
            stage.name: {key: getattr(stage.policy(now_s), key) for key in keys}
            for stage in self.pipeline.core.stages
        }
        return {
            "model": self.model_name,
            "sla": self.user_config.sla.model_dump(),
            "sla_in_words": self.user_config.sla.objective.in_words(),
            "config_error": self.config_error,
            "process": process_report(),
            "stages": policies,
        }

    def example_request(self) -> Mapping[str, Any]:
        item = self._example() if self._example is not None else {}
        example = {}
        for spec in self._inputs:
            zero = b"" if spec.datatype == "BYTES" else 0
            value = item.get(spec.name, np.full(spec.shape, zero, spec.numpy_dtype))
            example[spec.name] = np.asarray(value, spec.numpy_dtype)[np.newaxis]
        return example_request(self._inputs, example)


def _fit_row(spec: TensorSpec, value: Any) -> NDArray[Any]:
    # An array of bytes would drop the zeros at their ends.
    fitted = fit_output(spec, np.array(value, object) if spec.datatype == "BYTES" else value)
    if fitted.shape != spec.shape:
        raise ModelError(f"output {spec.name!r}: {spec.shape} expected, got {fitted.shape}")
    return fitted
