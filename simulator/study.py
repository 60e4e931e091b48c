"""A study: autoscalers side by side on one scenario, or a fixed fleet beside its prediction."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from autoscaler.reports import AutoscalerSettings
from autoscaler.sizing.batch_queue_estimator import BatchQueueEstimator
from autoscaler.sizing.search import least_replicas
from policy.errors import InfeasibleError, InvalidInputError
from policy.load_lateness import LoadLatenessCurve, solve_load_lateness_curve
from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from simulator import prediction
from simulator.arrivals import WithinSecond, poisson_counts, scaled_counts
from simulator.autoscalers.baselines import Deployment
from simulator.autoscalers.fixed import FixedFleet
from simulator.autoscalers.oracle import Clairvoyant
from simulator.autoscalers.registry import ORACLE, Choice, Task, choose
from simulator.reporting.comparison import PERCENTILES, Comparison
from simulator.results import Run
from simulator.run import Scenario, simulate
from simulator.scaling import ScalingPolicy
from simulator.trace import LONGEST_S

#: Told the label of what runs, and the share of the whole study that is done.
Progress = Callable[[str, float], None]

#: The name of a fleet that nothing scales.
FIXED = "fixed"


def compare(
    scenario: Scenario, choices: Sequence[Choice], progress: Progress | None = None
) -> Comparison:
    """Run autoscalers on the same arrivals, and the oracle beside them.

    Parameters
    ----------
    scenario : Scenario
        All begin with the replicas that the oracle begins with, `static` with its own.
    choices : sequence of Choice
        The oracle may be among them; it is run in any case.
    progress : callable, optional

    Raises
    ------
    InfeasibleError
        No number of replicas can meet the SLA; the message says what would.
    """
    # Scaled once, so that who knows the trace knows how it was rounded.
    random = np.random.default_rng(scenario.seed)
    counts = scaled_counts(scenario.counts, scenario.scale, random).astype(np.float64)
    scenario = replace(scenario, counts=counts, scale=1.0)
    curve = load_lateness_curve(scenario)
    task = Task(
        Deployment(
            scenario.profile,
            scenario.objective,
            curve.sla_rate_per_s,
            scenario.start_time.median_s,
        ),
        counts,
        scenario.autoscaler_settings or AutoscalerSettings(),
        scenario.min_replicas,
        scenario.max_replicas,
    )
    (oracle,) = choose(ORACLE)
    runs: dict[str, Run] = {}
    everything = {choice.name: choice for choice in (*choices, oracle)}
    begin = _initial(oracle.make(task), 1)
    for number, choice in enumerate(everything.values()):
        policy = choice.make(task)
        first = min(max(_initial(policy, begin), scenario.min_replicas), scenario.max_replicas)
        told = _told(progress, choice.label, number, len(everything), scenario.seconds)
        done = simulate(replace(scenario, replicas=first), policy, progress=told)
        runs[choice.name] = replace(done, name=choice.name)
    return Comparison(
        runs=tuple(runs[choice.name] for choice in choices),
        oracle=runs[ORACLE],
        labels={choice.name: choice.label for choice in everything.values()},
    )


def poisson_scenario(scenario: Scenario, arrival_rate_per_s: float, requests: int) -> Scenario:
    """Give the scenario with Poisson arrivals: about so many requests, at least for a second.

    Raises
    ------
    InvalidInputError
        That would take longer than a year.
    """
    seconds = max(1, round(requests / arrival_rate_per_s))
    if seconds > LONGEST_S:
        raise InvalidInputError(
            f"requests: {requests} at {arrival_rate_per_s:g}/s take longer than a year"
        )
    random = np.random.default_rng(scenario.seed)
    counts = poisson_counts(arrival_rate_per_s, seconds, random).astype(np.float64)
    return replace(scenario, counts=counts, scale=1.0, within_second=WithinSecond.UNIFORM)


def run_fixed(scenario: Scenario, replicas: int, progress: Progress | None = None) -> Comparison:
    """Run a fleet that nothing scales."""
    label = f"{replicas} replica" + ("s" if replicas > 1 else "")
    fixed = replace(scenario, replicas=replicas, min_replicas=replicas, max_replicas=replicas)
    told = _told(progress, label, 0, 1, scenario.seconds)
    done = simulate(fixed, FixedFleet(replicas, name=FIXED), progress=told)
    return Comparison((done,), labels={FIXED: label})


def predict_fixed(
    scenario: Scenario, arrival_rate_per_s: float, replicas: int
) -> prediction.Predicted | None:
    """Predict the fixed fleet; None where the model says nothing."""
    model = scenario.replica_model()
    return prediction.predict(
        scenario.profile,
        model.table.lookup(arrival_rate_per_s / replicas),
        scenario.objective,
        model.delays,
        model.limits,
        arrival_rate_per_s,
        replicas,
        PERCENTILES,
    )


def least_predicted(scenario: Scenario, arrival_rate_per_s: float) -> int | None:
    """Give the least replicas that the model says will do; None where none would."""
    model = scenario.replica_model()
    room = max(model.limits.waiting_room, scenario.profile.max_batch_size)
    estimator = BatchQueueEstimator(scenario.profile, model.delays, room)
    try:
        found = least_replicas(
            estimator, arrival_rate_per_s, scenario.objective, 1, scenario.max_replicas
        )
    except InfeasibleError:
        return None
    return found.replicas


def check_feasible(profile: Profile, objective: ServiceLevelObjective) -> None:
    """Raise `InfeasibleError` where even a batch of one is too slow."""
    BatchQueueEstimator(profile).check_feasible(objective)


def load_lateness_curve(scenario: Scenario) -> LoadLatenessCurve:
    """Give what one replica takes under the SLA.

    Raises
    ------
    InfeasibleError
        It meets the SLA at no rate.
    """
    check_feasible(scenario.profile, scenario.objective)
    curve = scenario.load_lateness_curve()
    if curve is not None:
        return curve
    model = scenario.replica_model()
    way_ms = model.delays.way_ms
    if scenario.objective.response_time_ms <= way_ms:
        raise InfeasibleError(
            f"{scenario.objective.response_time_ms:g} ms are over on the way to a replica and "
            f"back; allow more than {way_ms:g} ms"
        )
    try:
        return solve_load_lateness_curve(
            scenario.profile, model.objective_at_replica, model.limits.waiting_room
        )
    except InfeasibleError as error:
        raise InfeasibleError(
            f"{error} ({way_ms:g} of {scenario.objective.response_time_ms:g} ms go on the way)"
        ) from error


def _initial(policy: ScalingPolicy, otherwise: int) -> int:
    if isinstance(policy, Clairvoyant):
        return policy.initial_replicas
    return policy.count if isinstance(policy, FixedFleet) else otherwise


def _told(
    progress: Progress | None, label: str, number: int, runs: int, seconds: int
) -> Callable[[int], None] | None:
    """Turn the seconds done of one run into the share done of all."""
    if progress is None:
        return None
    return lambda done: progress(label, (number + done / seconds) / runs)
