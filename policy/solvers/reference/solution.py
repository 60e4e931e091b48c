"""Solve by a reference method, from profile to `Solution`."""

import math
from typing import Literal, get_args

import numpy as np

from policy.errors import InfeasibleError, InvalidInputError
from policy.numerics.markov import tail_decay
from policy.objective import Weights
from policy.profile import Profile
from policy.solvers.reference import policy_iteration, relative_value_iteration
from policy.solvers.reference.truncated import TruncatedSmdp
from policy.solvers.solution import Solution, SolverAverages

Method = Literal["policy_iteration", "relative_value_iteration"]
METHODS: tuple[Method, ...] = get_args(Method)

# Longer queues than the default have a probability below exp(-32) under full batches.
_LOG_TAIL = 32.0
# The default overflow cost, in cost rates of a device that is always busy with full batches: high
# enough that waiting for ever never pays, low enough that it adds nothing at that probability.
_OVERFLOW_COST = 100.0


def solve(
    profile: Profile,
    arrival_rate_per_s: float,
    weights: Weights,
    *,
    method: Method,
    max_queue_length: int | None = None,
    overflow_cost: float | None = None,
    span: float = 0.01,
) -> Solution:
    """Solve the truncated decision process by a textbook method.

    Parameters
    ----------
    max_queue_length : int, optional
        The paper's s_max. If not given, so long that the overflow state is hardly ever visited.
    overflow_cost : float, optional
        The paper's c_o, per millisecond in the overflow state. If not given, 100 times what a
        device costs that is always busy.
    span : float, optional
        Of relative value iteration: the average cost is known to within this.

    Returns
    -------
    Solution
        Its average cost includes the overflow cost.

    Raises
    ------
    InvalidInputError, InfeasibleError
        As of `TruncatedSmdp` and the method; or waiting for ever costs least, as it does if the
        queue length or the overflow cost is too small.
    """
    if max_queue_length is None:
        batch_size = profile.best_batch_size
        mean_arrivals = profile.arrivals_per_ms(arrival_rate_per_s)
        mean_arrivals *= float(profile.latency_ms[batch_size - 1])
        decay = tail_decay(mean_arrivals, batch_size)
        max_queue_length = 2 * profile.max_batch_size + math.ceil(_LOG_TAIL / decay)
    if overflow_cost is None:
        energy_mj = profile.energy_mj_for_weight(weights.energy_weight)
        busy_power_w = float(np.max(energy_mj / profile.latency_ms))
        in_time_ms = float(profile.latency_ms[-1]) + 1e3 * max_queue_length / profile.capacity_per_s
        overflow_cost = _OVERFLOW_COST * (
            weights.latency_weight * in_time_ms + weights.energy_weight * busy_power_w
        )
    smdp = TruncatedSmdp(profile, arrival_rate_per_s, weights, max_queue_length, overflow_cost)
    if method == "policy_iteration":
        found = policy_iteration.solve(smdp)
    else:
        found = relative_value_iteration.solve(smdp, span=span)
    actions = found.actions
    if actions[-1] == 0:
        raise InfeasibleError(
            f"{method}: waiting for ever costs least on the truncated queue; raise overflow_cost "
            f"(now {overflow_cost:g}) or max_queue_length (now {max_queue_length})"
        )
    states = np.arange(smdp.states)
    response_ms, _ = policy_iteration.evaluate(smdp, actions, smdp.response[states, actions])
    power_w, _ = policy_iteration.evaluate(smdp, actions, smdp.energy_mj[actions])
    idle_power_w = profile.idle_power_w or 0.0
    return Solution(
        profile=profile,
        arrival_rate_per_s=arrival_rate_per_s,
        objective=weights,
        policy=smdp.batching_policy(actions),
        averages=SolverAverages(
            mean_response_ms=response_ms,
            mean_power_w=None if profile.energy_mj is None else power_w + idle_power_w,
            average_cost=found.average_cost + weights.energy_weight * idle_power_w,
        ),
        rounds=found.rounds,
    )


def check_method(method: str) -> Method:
    for known in METHODS:
        if method == known:
            return known
    raise InvalidInputError(f"method: must be auto, exact, {' or '.join(METHODS)}, not {method!r}")
