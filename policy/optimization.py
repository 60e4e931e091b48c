"""The one entry to the solvers: from a profile, an arrival rate and an objective to a policy."""

from policy.batching_policy import BatchingPolicy
from policy.objective import Objective, Weights
from policy.profile import Profile
from policy.solvers import constrained, exact, tandem
from policy.solvers.solution import Solution


def solve(
    profile: Profile,
    arrival_rate_per_s: float,
    objective: Objective,
    *,
    start: BatchingPolicy | None = None,
) -> Solution:
    """Find the optimal batching policy.

    Parameters
    ----------
    profile : Profile
        Time and, if known, energy by batch size, and the costs of the event loop. With an event
        loop beside the device, the optimum for weights is that among control limits.
    arrival_rate_per_s : float
        Poisson arrivals, requests per second, below the profile's capacity.
    objective : Weights or ServiceLevelObjective
        Weights: the policy of least weighted mean response and power, among all that know the queue
        length. A service level: the policy of least power whose percentile holds, among control
        limits with a max wait; if none holds, the one that comes closest.
    start : BatchingPolicy, optional
        The policy of a similar problem, to begin from: several times as fast.

    Raises
    ------
    InvalidInputError
        An argument is out of its range, or does not fit the objective.
    InfeasibleError
        The device cannot keep up with the arrival rate, or no batch is as short as the response
        time.

    Examples
    --------
    >>> from sojourn import Profile, ServiceLevelObjective, solve
    >>> profile = Profile("model", "device", latency_ms=[1.0, 1.2, 1.4, 1.6])
    >>> solve(profile, 900.0, ServiceLevelObjective(5.0, 99.0)).meets_sla
    True
    """
    profile = profile.serial()
    if not isinstance(objective, Weights):
        return constrained.solve(profile, arrival_rate_per_s, objective, start=start)
    if profile.event_loop is not None:
        return tandem.solve(profile, arrival_rate_per_s, objective, start=start)
    return exact.solve(profile, arrival_rate_per_s, objective, start=start)
