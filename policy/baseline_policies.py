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

from collections.abc import Callable

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
    kind, *words = name.strip().split(":")
    makers: dict[tuple[str, int], Callable[[], BatchingPolicy]] = {
        ("work-conserving", 0): lambda: work_conserving(profile),
        ("static", 1): lambda: static(profile, int(words[0])),
        ("timeout", 2): lambda: timeout(profile, int(words[0]), float(words[1])),
    }
    unknown = InvalidInputError(f"policy {name!r}: must be one of {', '.join(FORMS)}")
    if (kind, len(words)) not in makers:
        raise unknown
    try:
        return makers[kind, len(words)]()
    except ValueError:
        raise unknown from None


def _check_batch_size(profile: Profile, batch_size: int) -> None:
    if not 1 <= batch_size <= profile.max_batch_size:
        raise InvalidInputError(
            f"policy: the batch size must be 1 to {profile.max_batch_size}, not {batch_size}"
        )
