"""The average cost of a policy, by the paper's truncated process with a long queue."""

import numpy as np

from policy.batching_policy import BatchingPolicy
from policy.objective import Weights
from policy.profile import Profile
from policy.solvers.reference.methods import evaluate
from policy.solvers.reference.truncated import TruncatedSmdp

_QUEUE = 250


def average_cost(
    profile: Profile, arrival_rate_per_s: float, weights: Weights, policy: BatchingPolicy
) -> float:
    smdp = TruncatedSmdp(profile, arrival_rate_per_s, weights, _QUEUE, 0.0)
    lengths = np.minimum(np.arange(smdp.states), _QUEUE)
    return evaluate(smdp, np.array([policy.batch_size(length) for length in lengths]))[0]
