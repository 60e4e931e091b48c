"""Named batching policies of simulated replicas."""

import math

from policy.baseline_policies import FORMS, reference_policy
from policy.batching_policy import BatchingPolicy
from policy.errors import InvalidInputError
from policy.objective import Weights
from policy.profile import Profile
from policy.service_model import BatchingSettings

#: The names.
NAMES = ("sla", "weights", "weights:ENERGY_WEIGHT", *FORMS)


def parse_batching(name: str, profile: Profile) -> tuple[BatchingSettings, BatchingPolicy | None]:
    """Return the settings of a name, and its fixed policy if it has one.

    ``sla``: what a live replica solves by default, the least power that keeps the SLA, or the least
    mean response time if the profile has no energy. ``weights:0.5``: the least sum of the mean
    response time in ms and half of the mean power in W. Otherwise a name of
    `policy.baseline_policies`, the same policy at every rate. An unknown name is an
    `InvalidInputError`.
    """
    kind, colon, weight = name.partition(":")
    if name == "sla":
        return BatchingSettings(), None
    if kind == "weights":
        try:
            energy_weight = float(weight) if colon else 0.0
        except ValueError:
            energy_weight = math.nan
        if not 0 <= energy_weight < math.inf:
            raise InvalidInputError(
                f"batching {name!r}: the energy weight must be a number of at least 0"
            )
        return BatchingSettings(objective="weights", weights=Weights(1.0, energy_weight)), None
    if kind not in {form.partition(":")[0] for form in FORMS}:
        raise InvalidInputError(f"batching {name!r}: must be one of {', '.join(NAMES)}")
    return BatchingSettings(), reference_policy(name, profile)
