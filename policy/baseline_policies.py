"""The batching policies that others are compared with, by name.

============================  ==================================================================
``work-conserving``           a free device starts with all that waits
``static:B``                  only batches of exactly B
``timeout:B:T``               at most B, when B wait or the oldest has waited T milliseconds
============================  ==================================================================

The first and the last are the dynamic batching of serving systems (a preferred batch size and a
queue delay); the first two are the benchmarks of Xu, Sun, Zhou, Niu, "SMDP-based dynamic batching
for efficient inference on GPU-based platforms" (2023).
"""

from contextlib import suppress

from policy.batching_policy import BatchingPolicy
from policy.errors import InvalidInputError
from policy.profile import Profile
from policy.values import check_at_least

FORMS = ("work-conserving", "static:B", "timeout:B:T")
"""The forms of the names; B is a batch size, T a time in milliseconds."""


def work_conserving(profile: Profile) -> BatchingPolicy:
    """Return the policy that starts all that wait as soon as the device is free."""
    return BatchingPolicy.from_control_limit(1, profile.max_batch_size)


def static(profile: Profile, batch_size: int) -> BatchingPolicy:
    _check_batch_size(profile, batch_size)
    return BatchingPolicy.from_control_limit(batch_size, batch_size)


def timeout(profile: Profile, batch_size: int, max_wait_ms: float) -> BatchingPolicy:
    """Return the policy that starts `batch_size`, or fewer once the oldest waited `max_wait_ms`."""
    _check_batch_size(profile, batch_size)
    check_at_least(0, "policy timeout: wait in ms", max_wait_ms)
    return BatchingPolicy.from_control_limit(batch_size, batch_size, max_wait_ms)


def reference_policy(name: str, profile: Profile) -> BatchingPolicy:
    with suppress(ValueError):
        match name.strip().split(":"):
            case ["work-conserving"]:
                return work_conserving(profile)
            case ["static", size]:
                return static(profile, int(size))
            case ["timeout", size, wait_ms]:
                return timeout(profile, int(size), float(wait_ms))
    raise InvalidInputError(f"policy {name!r}: must be one of {', '.join(FORMS)}")


def _check_batch_size(profile: Profile, batch_size: int) -> None:
    if not 1 <= batch_size <= profile.max_batch_size:
        raise InvalidInputError(
            f"policy: the batch size must be 1 to {profile.max_batch_size}, not {batch_size}"
        )
