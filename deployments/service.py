"""A replica without Ray: a model, its profile, its policy controller and its batcher."""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from deployments.access.control import AccessControl
from deployments.batcher.asyncio_batcher import Batcher
from deployments.batcher.batch_record import BatchRecord
from deployments.batcher.death_journal import DeathJournal
from deployments.batcher.front_meter import FrontMeter
from deployments.batcher.placement import BatchPlacement, longest_on_loop_ms
from deployments.batcher.requests import Refusal
from deployments.batcher.submission import Outcome, outputs_of
from deployments.config import ModelConfig, UserConfig
from deployments.control.observations import Observations, ReplicaObserver
from deployments.control.policy_controller import PolicyController
from deployments.device_health import HangLimits
from deployments.errors import BusyError, DeadlineError, RequestError
from deployments.example_request import example_request
from deployments.haproxy_view import MeanTimes
from deployments.http.body_budget import BodyBudget, default_limit_bytes
from deployments.http.inference_protocol import (
    InferenceRequest,
    Signature,
    Tensors,
)
from deployments.http.json_guard import claimed_rows
from deployments.http.retry_budget import RetryBudget
from deployments.inference_call import InferenceCall
from deployments.models.base import Model
from deployments.observability.inference_statistics import BatchTotals
from deployments.observability.request_info import RequestInfo
from deployments.observability.tracing import Tracing
from deployments.service_report import autoscaling_stats, policy_document
from deployments.service_start import ServiceStart
from deployments.threads import limit_threads, threads_in_use
from deployments.warm_up import WarmUp
from policy.profile import Profile
from policy.response_time.way import WayCosts

logger = logging.getLogger("sojourn.service")


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
    device : str
        ``cpu`` or ``cuda``.
    cpus : float
        CPUs that this process may use.
    warm : WarmUp, optional
        What warming the model up has found.
    journals : Path, optional
        Directory in which the replicas of this model on this machine tell each other what they
        were computing when they died (`deployments.batcher.death_journal`); by default, they do
        not.
    start : ServiceStart, optional
        What the start takes.

    Attributes
    ----------
    cpus, start : float, ServiceStart
        As above.
    replica : str or None
        The id of the Ray replica that it is in, the label `replica` of its metrics; the adapter
        sets it.
    config_error : str or None
        Why the latest configuration was rejected; the adapter that reads configurations sets it.
    answers : Counter of int
        Answers by HTTP status; the HTTP interface counts them.
    draining : bool
        Whether this replica is about to stop.
    refused_requests : int
        Requests that were answered 503, for another replica to take them.
    bodies : BodyBudget
        Bounds the memory that the bodies of unanswered requests take.
    retries : RetryBudget
        Which refused requests may be tried at another replica.
    access : AccessControl
        Who may use the service.
    tracing : Tracing
        Which requests are traced.
    standby : bool
        Whether this replica stands by.
    shares_cpu : bool
        Whether batches are computed on the CPU that the event loop runs on.
    counting_since_s : float
        Since when it counts, by `time.monotonic`.
    """

    platform = "python"

    def __init__(
        self,
        config: ModelConfig,
        model: Model,
        profile: Profile,
        *,
        device: str = "cpu",
        cpus: float = 1.0,
        warm: WarmUp | None = None,
        journals: Path | None = None,
        start: ServiceStart | None = None,
    ) -> None:
        self.cpus = cpus
        self.start = start or ServiceStart()
        self.model_name = config.name
        self.model_version = config.version
        self.signature = Signature(model.inputs, model.outputs, max_rows=1)
        self.max_body_bytes = 0
        self.receive_timeout_s = 0.0
        self.bodies = BodyBudget()
        self.retries = RetryBudget()
        self.replica: str | None = None
        self.config_error: str | None = None
        self.standby = False
        self.answers: Counter[int] = Counter()
        self.batch_totals = BatchTotals()
        self.draining = False
        self.access = AccessControl()
        self.tracing = Tracing(config.name, config.version)
        self.refused_requests = 0
        self._refused_before = 0
        self._max_timeout_ms = math.inf
        self._model = model
        self._journals = journals
        self._profile = profile
        self._hang_limits = HangLimits(config, warm.not_run if warm else ())
        self._computes_here = device == "cpu" and not model.waits
        self._placement = BatchPlacement()
        self._controller: PolicyController | None = None
        self._batcher: Batcher | None = None
        self._observer: ReplicaObserver | None = None
        self._front_meter: FrontMeter | None = None
        self.counting_since_s = time.monotonic()

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
    def cpus_note(self) -> str | None:
        """What to know about the profile given: that it was measured with other CPUs, if it was."""
        measured = self._profile.cpus
        if not self._computes_here or measured is None or measured == self.cpus:
            return None
        return (
            f"the profile was measured with {measured:g} CPUs, but this replica has {self.cpus:g}; "
            "measure it anew with as many"
        )

    @property
    def shares_cpu(self) -> bool:
        """Whether batches are computed on the CPU that the event loop runs on."""
        if not self._computes_here:
            return False
        return self.cpus <= 1 or self._placement.largest >= self.batcher.core.limits.max_batch_size

    @property
    def ready(self) -> bool:
        """Whether the model can answer, and will for longer than it takes to stop."""
        return self.configured and not self.draining and not self.stuck()

    def stuck(self) -> bool:
        """Return whether the device is lost, or hangs: one batch takes far too long."""
        if self._batcher is None:
            return False
        if self._batcher.lost_reason is not None:
            return True
        limit_s = self._hang_limits.limit_s(self._full_batch_ms, self._batcher.size_on_device)
        return self._batcher.busy_for_s() > limit_s

    @property
    def longest_answer_ms(self) -> float:
        """How long a client may wait for an answer that it is still given."""
        user_config = self.controller.user_config
        if user_config.limits.late == "serve":
            return self._max_timeout_ms
        return user_config.sla.response_time_ms

    @property
    def longest_batch_s(self) -> float:
        """How long any batch may take, those included that the model compiles for."""
        return self._hang_limits.longest_s(self._full_batch_ms)

    @property
    def _full_batch_ms(self) -> float:
        return float(self.controller.profile.latency_ms[-1])

    async def configure(self, user_config: UserConfig) -> None:
        """Apply a configuration; its policy takes effect as soon as it is solved.

        Until then the current policy stays. The first one starts a batch whenever the device is
        free.

        Raises
        ------
        InfeasibleError
            The SLA allows less time than a batch of one takes. The old configuration stays.
        InvalidInputError
            Requests are to be traced, but the packages for that are not installed.
        """
        self.tracing.configure(user_config.tracing)
        if self._controller is None:
            self._front_meter = FrontMeter.on_loop(asyncio.get_running_loop())
            self._controller = PolicyController(self._profile, user_config, self._advance)
            self._observer = ReplicaObserver(self._controller.sla_at_replica, self._front_meter)
            self._batcher = Batcher(
                self._model,
                self._controller.core,
                self._batch_ended,
                self._placement,
                partial(limit_threads, threads_in_use(self.cpus)),
                self._open_journal(),
            )
            self._batcher.model_errors.model = self.model_name
            self.counting_since_s = time.monotonic()
        else:
            self._controller.configure(user_config)
            self.observer.sla = self._controller.sla_at_replica
        self.access.configure(user_config.access)
        limits = user_config.limits
        self.signature = Signature(
            self._model.inputs, self._model.outputs, limits.max_rows_per_request
        )
        self.max_body_bytes = limits.max_body_bytes or self.signature.body_limit_bytes
        self.receive_timeout_s = limits.receive_timeout_s
        self.bodies.limit_bytes = limits.max_bytes_in_flight or default_limit_bytes()
        self._max_timeout_ms = limits.max_timeout_ms
        self._place_batches()

    def _batch_ended(self, record: BatchRecord) -> None:
        self.observer.batch_ended(record)
        self.batch_totals.add(record.size, record.duration_s)

    def _open_journal(self) -> DeathJournal | None:
        if self._journals is None:
            return None
        try:
            return DeathJournal(self._journals)
        except OSError as error:
            logger.warning("a request that kills a replica can kill more: %s", error)
            return None

    def _place_batches(self) -> None:
        """Decide which batches the event loop runs, by the profile now believed."""
        if not self._computes_here:
            return
        self._placement.use(
            self.controller.profile.latency_ms.tolist(),
            longest_on_loop_ms(self.cpus, self.controller.sla_at_replica.response_time_ms),
            time.monotonic(),
        )

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
            self.batcher.rows.arrivals.take(time.monotonic()), shares_cpu=self.shares_cpu
        )
        self._hang_limits.ran({record.size for record in seen.batches})
        self.batcher.refresh()
        self.batcher.expire(time.monotonic() - 1e-3 * self._max_timeout_ms)
        if seen.response_times_s:
            self.start.split.answered(seen.response_times_s[0])
        await self.controller.tick(seen)
        self._place_batches()
        return seen

    def compare_with_balancer(
        self,
        means: MeanTimes | None,
        way: WayCosts | None = None,
        refused_elsewhere: float = 0.0,
    ) -> None:
        """Take in what the balancer says: requests that wait there are answered later.

        Parameters
        ----------
        means : MeanTimes or None
            Mean times of the latest requests; None: it has nothing new.
        way : WayCosts, optional
            What it costs a request; None: not known.
        refused_elsewhere : float
            The share of their requests that the other replicas refuse.
        """
        self.retries.refused_elsewhere = refused_elsewhere
        self.controller.way = way
        refused = self.refused_requests - self._refused_before
        self._refused_before = self.refused_requests
        self.observer.balancer_wait.revise(
            means,
            refused=refused,
            held_s=self.front_meter.take_held_s(),
            way_ms=self.controller.user_config.autoscaler.settings().delays.way_ms,
        )

    def has_room(self, body: bytes, arrival_s: float | None = None) -> bool:
        """Return whether one more row may wait; if not, count the rows of `body` as refused.

        Parameters
        ----------
        body : bytes
            The body of an inference request.
        arrival_s : float, optional
            When it reached this process, by `time.monotonic`; now by default.

        Raises
        ------
        DeviceError
            There is no room because the device is lost.
        DeadlineError
            The request waited so long before it was read that no replica can answer it in time.
        """
        now_s = time.monotonic()
        if arrival_s is None:
            arrival_s = now_s
        if self.turns_away(arrival_s, now_s) is None:
            return True
        self.refuse(body, arrival_s)
        return False

    def turns_away(self, arrival_s: float, now_s: float) -> Refusal | None:
        """Return why one more row cannot be answered in time, without counting it.

        Parameters
        ----------
        arrival_s : float
            When the request reached this process, by `time.monotonic`.
        now_s : float

        Returns
        -------
        Refusal or None
            FULL or EXPIRED; None if it can.

        Raises
        ------
        DeviceError
            The device is lost. The request is counted.
        """
        assert self._batcher is not None
        assert self._front_meter is not None
        core = self._batcher.core
        # Answers leave at the end of the loop's iteration, when all that is there has been read.
        front_s = self._front_meter.time_left_s(now_s)
        if core.has_room(1, now_s + front_s, arrival_s):
            return None
        if self._batcher.lost_reason is not None:
            self.refuse(b"", arrival_s)
        return core.refusal(1, now_s, arrival_s)

    def count_turned_away(
        self, refusal: Refusal, requests: Sequence[tuple[float, int]], now_s: float
    ) -> None:
        """Count requests that were turned away, given their arrival times and rows."""
        self.batcher.count_turned_away(refusal, requests, now_s)
        self.front_meter.request_refused(len(requests))
        if refusal is Refusal.FULL:
            self.refused_requests += len(requests)
        else:
            for arrival_s, rows in requests:
                self.observer.deadline_missed(rows, now_s - arrival_s, math.inf)

    def refuse(self, body: bytes, arrival_s: float) -> None:
        """Count the rows of a request that is refused before it is parsed.

        Parameters and errors are those of `has_room`.
        """
        batcher, now_s = self.batcher, time.monotonic()
        self.front_meter.request_refused()
        rows = claimed_rows(body, self.signature.max_rows)
        try:
            batcher.refuse_unread(rows, now_s, arrival_s)
        except RequestError as error:
            self.count_failure(error, rows, arrival_s)
            raise
        self.refused_requests += 1

    async def infer(
        self, request: InferenceRequest, arrival_s: float, info: RequestInfo | None = None
    ) -> Tensors:
        """Answer a checked request; cancelling the call gives it up.

        Parameters and errors are those of `infer_nowait` and of its outcome.
        """
        return await outputs_of(
            lambda on_done: self.infer_nowait(request, arrival_s, on_done, info)
        )

    def infer_nowait(
        self,
        request: InferenceRequest,
        arrival_s: float,
        on_done: Callable[[Outcome], None],
        info: RequestInfo | None = None,
    ) -> InferenceCall:
        """Have a checked request answered.

        Parameters
        ----------
        request : InferenceRequest
        arrival_s : float
            When it reached this process, by `time.monotonic`. Its deadline counts from here.
        on_done : callable
            Called once on the event loop, after this call has returned, with the outcome: the
            model's outputs, each of shape ``(rows, ...)``, or a `RequestError`. It is not called if
            the request is cancelled.
        info : RequestInfo, optional
            Its id, and what takes the times of its batches.

        Returns
        -------
        InferenceCall
            Its `cancel` gives the request up.

        Raises
        ------
        RequestError
            The request is refused at once, as in `Batcher.submit_nowait`.
        """
        deadline_ms = request.deadline_ms
        deadline_ms = math.inf if deadline_ms is None else min(deadline_ms, self._max_timeout_ms)
        call = InferenceCall(self, request.rows, arrival_s, deadline_ms, on_done)
        try:
            call.submission = self.batcher.submit_nowait(
                request.inputs,
                request.rows,
                arrival_s,
                call.finish,
                arrival_s + 1e-3 * deadline_ms,
                request.priority,
            )
        except RequestError as error:
            self.count_failure(error, request.rows, arrival_s, deadline_ms)
            raise
        if info is not None:
            call.submission.trace, call.submission.request_id = info.trace, info.request_id
        return call

    def count_failure(
        self, error: RequestError, rows: int, arrival_s: float, deadline_ms: float = math.inf
    ) -> None:
        """Count a request that is answered with an error."""
        if error.status == BusyError.status:
            self.refused_requests += 1
        if isinstance(error, DeadlineError):
            waited_s = time.monotonic() - arrival_s
            self.observer.deadline_missed(rows, waited_s, deadline_ms)

    def autoscaling_stats(self) -> dict[str, float]:
        """Return what the autoscaler is told of this replica: counters, gauges and settings."""
        return autoscaling_stats(self)

    def explain(self) -> Mapping[str, Any]:
        """Return the content of `GET /sojourn/policy`."""
        return policy_document(self)

    def example_request(self) -> Mapping[str, Any]:
        """Return a valid request of one row, for `GET /sojourn/example`."""
        return example_request(self._model)

    def begin_drain(self) -> None:
        """Say that this replica is not ready any more; requests that still come are answered."""
        self.draining = True

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new requests, and wait until the accepted ones are answered.

        Returns
        -------
        bool
            Whether all were answered within `timeout_s`.
        """
        self.begin_drain()
        if self._batcher is None:
            return True
        try:
            await asyncio.wait_for(self._batcher.drain(), timeout_s)
        except TimeoutError:
            waiting = self._batcher.core.queue_length
            logger.error("%d rows were not answered within %g s", waiting, timeout_s)
            return False
        return True

    def unload(self) -> None:
        """Give back the model's weights. Nothing may be asked of the model after this."""
        self._model.unload()

    async def close(self) -> None:
        """End the device thread, and cancel an unfinished solve."""
        self.tracing.close()
        if self._controller is not None:
            await self._controller.close()
        if self._batcher is not None:
            self._batcher.close()
