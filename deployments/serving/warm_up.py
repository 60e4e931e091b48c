"""Run a model once at the batch sizes that it will meet, before a request does.

Some models compile, or tune themselves, the first time that they meet a batch size. That may take
longer than any batch should, so it must not look like a device that hangs.
"""

import logging
import time
from collections.abc import Callable, Sequence

from deployments.models.base import Model
from deployments.models.outputs import check_forward

logger = logging.getLogger("sojourn.service")

#: A size's first batch is a compile if it takes this many times what batches of the size take, and
#: this much longer.
COMPILE_FACTOR, COMPILE_S = 3.0, 0.05


def warm_up(
    model: Model,
    latency_ms: Sequence[float],
    budget_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> frozenset[int]:
    """Run a model's examples and check the outputs, at all batch sizes if it compiles for each.

    Powers of two and the largest size are run first. If one takes much longer than the profile
    says, and the next time does not, the model compiles for each size. Only then the other sizes
    are run as well, while `budget_s` lasts. Returns the sizes that remain to be compiled for.

    Raises
    ------
    StartError
        `forward` failed, or returned outputs other than those declared.
    """
    started_s = clock()
    largest = len(latency_ms)
    to_run = _sizes_in_order(largest)
    if model.waits:
        to_run = to_run[:2]
    not_run = set(to_run)
    compiles = False
    for number, size in enumerate(to_run):
        is_power = size & (size - 1) == 0 or size == largest
        if number > 1 and (clock() - started_s > budget_s or not (compiles or is_power)):
            break
        first_s = _run(model, size, clock)
        not_run.discard(size)
        # The first batch of all has more to prepare than its size.
        if number and not compiles and _is_compile(first_s, 1e-3 * latency_ms[size - 1]):
            compiles = _is_compile(first_s, _run(model, size, clock))
    if not compiles:
        return frozenset()
    logger.warning(
        "the model compiles for each batch size: %d of %d sizes were run in %.0f s",
        len(to_run) - len(not_run),
        len(to_run),
        clock() - started_s,
    )
    return frozenset(not_run)


def _sizes_in_order(largest: int) -> Sequence[int]:
    """Return all sizes: 1 and the largest, powers of two, then the others from the smallest on."""
    sizes = range(1, largest + 1)
    return sorted(sizes, key=lambda size: (size not in (1, largest), size & (size - 1) != 0, size))


def _run(model: Model, size: int, clock: Callable[[], float]) -> float:
    started_s = clock()
    check_forward(model, [size])
    return clock() - started_s


def _is_compile(first_s: float, usual_s: float) -> bool:
    return first_s > max(COMPILE_FACTOR * usual_s, usual_s + COMPILE_S)
