"""A replica without Ray: a model, its profile, its policy controller and its batcher."""

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from autoscaler.reports import bottleneck_to_floats, delays_to_floats
from deployments.batcher.asyncio_batcher import Batcher
from deployments.batcher.crash_journal import CrashJournal
from deployments.batcher.event_loop_meter import EventLoopMeter
from deployments.batcher.model_runner import BatchRecord
from deployments.config.replica_args import ModelConfig
from deployments.config.user_config import UserConfig
from deployments.control.observations import Observations, ReplicaObserver
from deployments.control.policy_controller import PolicyController, check_feasible
from deployments.haproxy.stats import ProxyReport
from deployments.http.request_body import default_limit_bytes
from deployments.http.signature import PriorityLevels, Signature, body_limit_bytes
from deployments.models.base import EnergyMeter, Model
from deployments.models.example_request import example_request
from deployments.models.threads import limit_threads, threads_in_use
from deployments.observability.last_minute import LastMinute
from deployments.observability.process import process_report
from deployments.serving.batched_service import BatchedService
from deployments.serving.model_device import ModelDevice
from deployments.serving.request_counts import RequestCounts
from deployments.serving.service_start import ServiceStart
from policy.errors import InvalidInputError
from policy.profile import Profile
from policy.returns import MIN_WAIT_S, earliest_return_s, next_wait_s

logger = logging.getLogger("sojourn.service")


class InferenceService(BatchedService):
    """One model behind its batcher; the `Service` of `deployments.http.app`.

    Call `configure` before anything else. In the directory `journals`, the replicas of this model
    on this machine tell each other what they were computing when they died
    (`deployments.batcher.crash_journal`).
    """

    platform = "python"

    controller: PolicyController
    observer: ReplicaObserver

    def __init__(
        self,
        config: ModelConfig,
        model: Model,
        profile: Profile,
        *,
        device: str = "cpu",
        cpus: float = 1.0,
        not_run: Collection[int] = (),
        journals: Path | None = None,
        start: ServiceStart | None = None,
        energy_meter: EnergyMeter | None = None,
    ) -> None:
        super().__init__(config.name, config.version)
        self.start = start or ServiceStart()
        self.device = ModelDevice(
            config,
            profile.cpus,
            cpus,
            computes_here=device == "cpu" and not model.waits,
            not_run=not_run,
        )
        self.signature = Signature(model.inputs, model.outputs, max_rows=1)
        self.max_body_bytes = 0
        self.standby = False
        self.counting_since_s = time.monotonic()
        self._model = model
        self._journals = journals
        self._profile = profile
        self._energy_meter = energy_meter
        self._refused_rows = 0
        self._return_wait_s, self._compared_s = MIN_WAIT_S, time.monotonic()

    @property
    def shares_cpu(self) -> bool:
        """Whether batches are computed on the CPU that the event loop runs on."""
        return self.device.shares_cpu(self.batcher.core.limits.max_batch_size)

    @property
    def ready(self) -> bool:
        """Whether the model can answer, and will for longer than it takes to stop."""
        return self.configured and not self.draining and not self.stuck()

    def stuck(self) -> bool:
        """Return whether the device is lost, or hangs: one batch takes far too long."""
        return self.configured and self.device.is_stuck(self.batcher, self.controller.profile)

    @property
    def overdue(self) -> bool:
        """Whether one batch takes so long that no request could be answered in time."""
        return self.configured and self.batcher.core.is_overdue(time.monotonic())

    @property
    def longest_batch_s(self) -> float:
        """How long any batch may take, those included that the model compiles for."""
        return self.device.longest_batch_s(self.controller.profile)

    def check(self, user_config: UserConfig) -> None:
        """Check that a configuration suits the model, and change nothing.

        Raises
        ------
        InfeasibleError
            The SLA allows less time than a batch of one takes.
        InvalidInputError
            The policy table is for another profile or SLA.
        """
        if user_config.power_limit_w is not None and not self.start.alone:
            raise InvalidInputError(
                "power_limit_w: needs replicas of one model; those of several share a device"
            )
        profile = self.controller.profile if self.configured else self._profile
        check_feasible(profile, user_config, self._profile)

    async def configure(self, user_config: UserConfig) -> None:
        """Apply a configuration; its policy takes effect as soon as it is solved.

        Until then the current policy stays. The first one starts a batch whenever the device is
        free.

        Raises
        ------
        InfeasibleError
            The SLA allows less time than a batch of one takes. The old configuration stays.
        InvalidInputError
            Requests are to be traced, but the packages for that are not installed. The old
            configuration stays.
        """
        self.check(user_config)
        self.tracing.configure(user_config.tracing)
        if self.configured:
            self.controller.configure(user_config)
            self.observer.sla = self.controller.sla_at_replica
        else:
            self._begin(user_config)
        self.access.configure(user_config.access)
        limits, levels = user_config.limits, user_config.limits.expert.priority_levels
        self.signature = Signature(
            self._model.inputs,
            self._model.outputs,
            limits.max_rows_per_request,
            PriorityLevels(levels),
        )
        self.max_body_bytes = limits.max_body_bytes or body_limit_bytes(
            self._model.inputs, limits.max_rows_per_request
        )
        self.receive_timeout_s = limits.expert.receive_timeout_s
        self.bodies.limit_bytes = limits.expert.max_bytes_in_flight or default_limit_bytes()
        self._max_timeout_ms = limits.expert.max_timeout_ms
        self._place_batches()

    def _begin(self, user_config: UserConfig) -> None:
        """Make what works by a configuration, with the first one."""
        self.event_loop_meter = EventLoopMeter.on_loop(asyncio.get_running_loop())
        meter = self._energy_meter
        self.controller = PolicyController(
            self._profile,
            user_config,
            self._advance,
            refits_energy=meter is not None and self.start.alone and not meter.is_shared,
        )
        self.observer = ReplicaObserver(
            self.controller.sla_at_replica, self.event_loop_meter, meter
        )
        self.batcher = Batcher(
            self._model,
            self.controller.core,
            self._batch_ended,
            self.device.placement,
            partial(limit_threads, threads_in_use(self.device.cpus)),
            self._open_journal(),
        )
        self.batcher.runner.errors.model = self.model_name
        self.counts = RequestCounts(self.batcher, self.observer, self.event_loop_meter)
        self.counting_since_s = time.monotonic()
        self.last_minute = LastMinute(self.counting_since_s)
        self.configured = True

    def _advance(self) -> None:
        # The controller may find a policy before there is a batcher.
        if self.configured:
            self.batcher.advance()

    def _batch_ended(self, record: BatchRecord) -> None:
        self.observer.batch_ended(record)
        self.batch_totals.add(record.size, record.duration_s)

    def _open_journal(self) -> CrashJournal | None:
        if self._journals is None:
            return None
        try:
            return CrashJournal(self._journals)
        except OSError as error:
            logger.warning("a request that kills a replica can kill more: %s", error)
            return None

    def _place_batches(self) -> None:
        """Decide which batches the event loop runs, by the profile now believed."""
        controller = self.controller
        self.device.place_batches(controller.profile, controller.sla_at_replica.response_time_ms)

    async def tick(self) -> Observations:
        """Adjust the policy to the latest observations, and abandon a device that hangs.

        To be called every `deployments.control.policy_controller.TICK_S`.
        """
        self.end_overdue()
        self.batcher.deaths.refresh()
        await asyncio.sleep(0)  # requests that came meanwhile have their turn
        refused_before, self._refused_rows = self._refused_rows, self.batcher.rows.refused
        seen = self.observer.take(
            shares_cpu=self.shares_cpu,
            refused=self._refused_rows - refused_before,
        )
        self.last_minute.add(
            time.monotonic(),
            {
                "completed": self.batcher.rows.completed,
                "answered": self.observer.answered_rows,
                "late": self.observer.late_rows,
                "refused": self._refused_rows,
                "failed": self.counts.rows_failed,
                "refused_concurrency_limit": self.counts.rows_refused_by_balancer,
                **self.refusals(),
            },
        )
        await asyncio.sleep(0)
        self.device.ran({record.size for record in seen.batches})
        await self.controller.tick(seen)
        self._place_batches()
        return seen

    def end_overdue(self) -> None:
        """Abandon a device that hangs, and answer the requests whose time is over."""
        if self.stuck():
            if self.batcher.lost_reason is None:
                logger.error("%s", self.batcher.hang_in_words())
            self.batcher.lose_device("the device of this replica does not answer")
        self.batcher.expire(time.monotonic() - 1e-3 * self._max_timeout_ms)

    def compare_with_proxy(self, report: ProxyReport) -> None:
        """Update the proxy delay, and what HAProxy refused and when its clients may return."""
        now_s = time.monotonic()
        self._return_wait_s = next_wait_s(
            self._return_wait_s, report.answered, report.failed, now_s - self._compared_s
        )
        self._compared_s = now_s
        self.earliest_return_s = earliest_return_s(self._return_wait_s)
        self.counts.refused_by_balancer(report.denied)
        allowed_ms = self.controller.user_config.autoscaler.settings().delays.round_trip_ms
        self.observer.proxy_delay.update(report.mean_ms, allowed_ms, report.outward_ms)

    def autoscaling_stats(self) -> dict[str, float]:
        """Return what a replica reports to the autoscaler: counters, gauges and settings."""
        batcher, controller, observer = self.batcher, self.controller, self.observer
        return {
            "offered_total": batcher.rows.offered,
            "refused_total": batcher.rows.refused,
            "refused_by_balancer_total": self.counts.rows_refused_by_balancer,
            "queue_length": batcher.core.queue_length,
            "full_batch_size": batcher.core.limits.max_batch_size,
            "full_batch_ms": batcher.core.limits.latency_ms[-1],
            "answered_total": observer.answered_rows,
            "late_total": observer.late_rows,
            "counted_s": time.monotonic() - self.counting_since_s,
            **controller.solver.sla_capacity.to_floats(),
            **controller.power_limit_stats(),
            **bottleneck_to_floats(controller.bottleneck),
            **delays_to_floats(controller.delays),
            **controller.user_config.autoscaler.settings().to_floats(),
        }

    def explain(self) -> Mapping[str, Any]:
        """Return the content of `GET /sojourn/policy`."""
        batcher, controller, observer = self.batcher, self.controller, self.observer
        user_config = controller.user_config
        now_s = time.monotonic()
        return {
            "model": self.model_name,
            "replica": self.replica,
            "sla": user_config.sla.model_dump(),
            "sla_in_words": user_config.sla.objective.in_words(),
            "objective": user_config.policy.model_dump(),
            "autoscaler": asdict(user_config.autoscaler.settings()),
            "standby": self.standby,
            "process": process_report(),
            "config_error": self.config_error or controller.solver.error,
            "queue_length": batcher.core.queue_length,
            "proxy_delay_ms": 1e3 * observer.proxy_delay.delay_s,
            "cpus": self.device.cpus,
            "cpus_note": self.device.cpus_note,
            "start": self.start.explain(),
            "largest_batch_on_event_loop": batcher.placement.largest,
            "model_errors": batcher.runner.errors.report(),
            "last_batches": [
                {"ended_s_ago": now_s - ended_s, **record.explain()}
                for ended_s, record in reversed(observer.last_batches)
            ],
            "batch_sizes": {str(size): n for size, n in self.batch_totals.batches.items()},
            "batches_started": {reason.value: count for reason, count in batcher.starts.items()},
            "rows": {
                "offered": batcher.rows.offered,
                "refused": batcher.rows.refused,
                "completed": batcher.rows.completed,
                "answered": observer.answered_rows,
                "late": observer.late_rows,
                "failed": self.counts.rows_failed,
                "deadline_missed": batcher.rows.deadline_missed,
                "expired": batcher.rows.expired,
            },
            "last_minute": self.last_minute.growth(),
            "device": {
                "busy_s": observer.device_busy_s,
                "energy_j": observer.energy_j,
                "energy_meter": observer.energy_meter and observer.energy_meter.source,
            },
            **controller.explain(),
        }

    def example_request(self) -> Mapping[str, Any]:
        """Return a valid request of one row, for `GET /sojourn/example`."""
        return example_request(self._model.inputs, self._model.example(1))

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new requests; return whether the accepted ones were answered in time."""
        self.begin_drain()
        if not self.configured:
            return True
        try:
            await asyncio.wait_for(self.batcher.drain(), timeout_s)
        except TimeoutError:
            waiting = self.batcher.core.queue_length
            logger.error("%d rows were not answered within %g s", waiting, timeout_s)
            return False
        return True

    def unload(self) -> None:
        """Release the model's weights. The model must not be used after this."""
        self._model.unload()

    async def close(self) -> None:
        """End the device thread, and cancel an unfinished solve.

        Open requests, and those that still come, are told that another replica may answer.
        """
        self.tracing.close()
        if self.configured:
            self.batcher.core.drain()
            if self.batcher.core.device_busy or self.batcher.core.queue_length:
                version = f"{self.model_name} {self.model_version}"
                self.batcher.lose_device(f"{version} was closed before it could answer")
            await self.controller.close()
            self.batcher.close()
