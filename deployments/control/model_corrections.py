"""Corrections for traffic and devices that differ from the model that the policy was solved for."""

import math
from collections import deque
from dataclasses import replace
from statistics import median_high

from deployments.control.energy_refit import EnergyRefit
from deployments.control.event_loop_fit import EventLoopFit
from deployments.control.latency_refit import LatencyRefit
from deployments.control.observations import Observations
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.try_delays import TryDelays

#: Ticks between checks of the profile. Two successive checks must find it wrong.
REVISE_EVERY = 3
#: Ticks that pass after the n-th refit before the next one are n times this, at most the second
#: number: a refit has a new table solved, which costs a second or more of a core.
REST_AFTER_REFIT, LONGEST_REST = 30, 600
#: Batches of a tick that are looked at; of more, an even sample.
BATCHES_PER_TICK = 128
#: Ticks without refusals over which the proxy delay is judged, by its median.
PROXY_DELAY_TICKS = 10
#: Change of the proxy delay that is tolerated, as a share of the SLA's response time, and the most
#: that the model takes off it.
PROXY_DELAY_STEP, MOST_PROXY_DELAY = 0.05, 0.5
#: Refusals after which one counts for 1/e in the mean time that they take.
REFUSALS_REMEMBERED = 1000


class WaitCorrection:
    """Keep the SLA on measured response times, by shortening the policy's waits.

    The policy's waits come from a model. Where the world is worse than the model (bursts, a noisy
    neighbor), more requests are late than the SLA allows, and waits shrink until it holds again.
    They grow back slowly while at most half of the allowed requests are late.

    `factor` multiplies the policy's maximum wait: 1 trusts the model, 0 starts batches at once.
    """

    #: The window holds as many requests as may include this many late ones: enough to measure the
    #: share, and more requests for a higher percentile.
    ALLOWED_LATE_PER_WINDOW = 10
    #: Factor by which waits shrink, and the step by which they grow.
    SHRINK, GROW = 0.8, 0.02

    def __init__(self) -> None:
        self.factor = 1.0
        self._requests = 0.0
        self._late = 0.0

    def revise(self, requests: int, late: int, late_share_allowed: float) -> float:
        """Record the latest answers, and which were late; return the factor for the next ones."""
        window = self.ALLOWED_LATE_PER_WINDOW / late_share_allowed
        keep = max(0.0, 1.0 - requests / window)
        self._requests = keep * self._requests + requests
        self._late = keep * self._late + late
        if self._requests < window / 2 or not requests:
            return self.factor
        late_share = self._late / self._requests
        if late_share > late_share_allowed:
            self.factor *= self.SHRINK
            # Judge the shorter wait mainly by the requests that come after it.
            self._late *= self.SHRINK
        elif late_share < late_share_allowed / 2:
            self.factor = min(1.0, self.factor + self.GROW)
        return self.factor


class ModelCorrections:
    """The corrections of the model: batch times and energy, event loop, HAProxy, waits.

    The energy is refitted with `refits_energy`: if the meter counts only this model's batches.
    """

    def __init__(self, profile: Profile, *, refits_energy: bool = True) -> None:
        self.energy = EnergyRefit()
        self._refits_energy = refits_energy
        self.profile_revisions = 0
        self.proxy_delay_ms = self._outward_delay_ms = 0.0
        #: How long a request is here until it is refused; None before the first.
        self._refusal_ms: float | None = None
        self._proxy_delays_ms: deque[float] = deque(maxlen=PROXY_DELAY_TICKS)
        self.event_loop = EventLoopFit(profile.event_loop)
        self.profile = profile
        self._latency = LatencyRefit(profile)
        self._waits = WaitCorrection()
        self._ticks = 0
        self._refits = 0
        self._rest_until = 0

    @property
    def newest_profile(self) -> Profile:
        """The profile now believed, with the costs and batch times of now.

        Solving for every small change would take too long, but predicting does not.
        """
        if self.profile.event_loop is None:
            return self.profile
        profile = replace(self.profile, event_loop=self.event_loop.measured())
        quantiles = self._latency.measured_quantiles()
        return profile if quantiles is None else replace(profile, latency_quantiles=quantiles)

    @property
    def wait_factor(self) -> float:
        """Multiplies the policy's waits, 0 to 1."""
        return self._waits.factor

    def observe(self, seen: Observations, late_share_allowed: float) -> None:
        self._waits.revise(len(seen.response_times_s), seen.late_answers, late_share_allowed)
        if seen.refused:  # in an overload, a longer delay is no property of the load it can take
            self._proxy_delays_ms.clear()
        else:
            self._proxy_delays_ms.append(seen.proxy_delay_ms)
            self._outward_delay_ms = seen.outward_delay_ms
        if seen.refused_unread:
            mean_ms = 1e3 * seen.refusal_s / seen.refused_unread
            before_ms = mean_ms if self._refusal_ms is None else self._refusal_ms
            keep = math.exp(-seen.refused_unread / REFUSALS_REMEMBERED)
            self._refusal_ms = mean_ms + keep * (before_ms - mean_ms)
        if seen.energy_mj is not None:
            sizes = [record.size for record in seen.batches]
            self.energy.observe(seen.energy_mj, 1e3 * seen.elapsed_s, sizes)
        if seen.event_loop is not None:
            self.event_loop.observe(seen.event_loop, shares_cpu=seen.shares_cpu)
        for record in seen.batches[:: -(-len(seen.batches) // BATCHES_PER_TICK) or 1]:
            if not record.failed:
                duration_s = record.duration_s
                if seen.shares_cpu and record.cpu_s:
                    # Event loop and device take turns in the model, which counts these waits.
                    duration_s = min(duration_s, self.event_loop.slowdown * record.cpu_s)
                self._latency.observe(record.size, 1e3 * duration_s)
        self._ticks += 1

    def refit_profile(self, *, solving: bool = False) -> bool:
        """Refit the profile if a check is due and it is wrong; return whether it changed.

        A change begins the `solving` of a table anew. So until it is solved, only the time and
        energy of batches are refitted, and costs that were not known.
        """
        if self._ticks % REVISE_EVERY:
            return False
        rests, event_loop_known = (
            self._ticks < self._rest_until,
            self.profile.event_loop is not None,
        )
        latency = None if rests else self._latency.revise()
        event_loop = None if (rests or solving) and event_loop_known else self.event_loop.revise()
        energy = None
        if self._refits_energy and not rests:
            energy = self.energy.revise(self._latency.profile)
        if latency is None and event_loop is None and energy is None:
            return False
        self._latency.profile = energy or self._latency.profile
        self.profile = replace(self._latency.profile, event_loop=self.event_loop.costs)
        self.profile_revisions += 1
        # A first measurement is no sign of a restless device.
        if latency is not None or energy is not None or event_loop_known:
            self._refits += 1
            rest = min(self._refits * REST_AFTER_REFIT, LONGEST_REST)
            self._rest_until = self._ticks + rest
        return True

    def update_proxy_delay(self, sla: ServiceLevelObjective) -> bool:
        """Adopt the measured proxy delay if it has moved; return whether it has."""
        if len(self._proxy_delays_ms) < PROXY_DELAY_TICKS:
            return False
        measured_ms = _two_digits(median_high(self._proxy_delays_ms))
        step_ms = PROXY_DELAY_STEP * sla.response_time_ms
        if abs(measured_ms - self.proxy_delay_ms) <= step_ms:
            return False
        self.proxy_delay_ms = measured_ms
        self._proxy_delays_ms.clear()
        return True

    def after_proxy_delay(self, sla: ServiceLevelObjective) -> ServiceLevelObjective:
        return sla.after(min(self.proxy_delay_ms, MOST_PROXY_DELAY * sla.response_time_ms))

    def delays(self, prior: TryDelays) -> TryDelays:
        """Return the delays of a try as measured, in two digits; those of the prior until then.

        The proxy delay in force comes on top of the prior's: the waits for a connection on the way
        to the replica, and half of the rest on either way. A refused try takes besides what it was
        at the replica; HAProxy tries again at once.
        """
        outward_ms = min(self._outward_delay_ms, self.proxy_delay_ms)
        refusal_ms = prior.retry_delay_ms if self._refusal_ms is None else self._refusal_ms
        return TryDelays(
            _two_digits(prior.request_delay_ms + (self.proxy_delay_ms + outward_ms) / 2),
            _two_digits(prior.reply_delay_ms + (self.proxy_delay_ms - outward_ms) / 2),
            _two_digits(max(0.0, refusal_ms)),
            prior.retries,
        )


def _two_digits(value: float) -> float:
    return float(f"{value:.2g}")
