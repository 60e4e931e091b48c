"""What a front did: its work counted and timed, and sums that tell what its parts cost."""

from dataclasses import dataclass, field


class IterationSums:
    """Sums over iterations that had work, from which a fit tells what their parts cost.

    Within a second, iterations with one request and with many come in all mixtures. Whole seconds
    do not tell requests and batches apart: larger batches come with a higher rate, at which caches
    are warm.

    Attributes
    ----------
    products : list of float
        Of answered requests a, batches b and refusals r: the sums of w a a, w a b, w a r, w b b,
        w b r, w r r, with the weight w = 1 / (a + b + r) of an iteration.
    cpu_s : list of float
        The sums of w a c, w b c and w r c, with c the CPU time of the iteration.
    """

    __slots__ = ("cpu_s", "products")

    def __init__(self) -> None:
        self.products = [0.0] * 6
        self.cpu_s = [0.0] * 3

    def add(self, answered: int, batches: int, refused: int, cpu_s: float) -> None:
        """Add an iteration."""
        weight = 1 / (answered + batches + refused)
        weighted, weighted_batches = weight * answered, weight * batches
        products, sums_s = self.products, self.cpu_s
        products[0] += weighted * answered
        products[1] += weighted * batches
        products[3] += weighted_batches * batches
        sums_s[0] += weighted * cpu_s
        sums_s[1] += weighted_batches * cpu_s
        if refused:
            products[2] += weighted * refused
            products[4] += weighted_batches * refused
            products[5] += weight * refused * refused
            sums_s[2] += weight * refused * cpu_s


@dataclass(frozen=True, slots=True)
class FrontCounts:
    """What the front did between two calls of `FrontMeter.take`.

    Attributes
    ----------
    duration_s : float
        Time between the calls.
    requests : int
        Requests read, refused ones included.
    refused : int
        Requests refused before they were parsed.
    batches : int
        Batches that ended.
    busy_s, busy_cpu_s : float
        Wall time of the iterations that had work, and the CPU time that the thread got in them;
        without the batches, likewise.
    other_cpu_s : float
        CPU time of the process's other threads.
    longest_lag_s : float
        The longest that the loop kept anything waiting: its longest iteration, or its latest
        heartbeat.
    cpu_wait_s : float or None
        Time for which the loop's thread was ready to run, but had no CPU; None: not known.
    iterations : IterationSums
        Of the iterations that had work, without the batches that the thread computed itself.
    stalled_s : float
        By how much heartbeats were late without work of the loop's own.
    """

    duration_s: float
    requests: int
    refused: int
    batches: int
    busy_s: float
    busy_cpu_s: float
    other_cpu_s: float
    longest_lag_s: float
    cpu_wait_s: float | None = None
    iterations: IterationSums = field(default_factory=IterationSums)
    stalled_s: float = 0.0
