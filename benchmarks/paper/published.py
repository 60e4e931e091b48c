"""The printed values of the SMDP paper: its settings and Table I.

Source: Xu, Sun, Zhou, Niu, "SMDP-Based Dynamic Batching for Efficient Inference on GPU-Based
Platforms", IEEE ICC 2023, arXiv 2301.12865, section V.
"""

from dataclasses import dataclass

from policy.profile import Profile

MAX_BATCH_SIZE = 32
MAX_THROUGHPUT_PER_MS = 2.96  # μ of the largest batch
TABLE_1_LOAD = 0.9
ENERGY_WEIGHTS = (0.0, 0.1, 1.0, 500.0)  # w₂ of figure 4, a panel each
MAX_ENERGY_WEIGHT = 20.0  # the right end of figure 5
STATIC_BATCH_SIZES = (8, 16, 32)
QUEUE_LENGTHS = (32, 250)  # the range of figure 8


@dataclass(frozen=True)
class TableRow:
    """A row of Table I: the shortest queue that suffices for an overflow cost, and its solution.

    Attributes
    ----------
    sweeps : int
        Sweeps of relative value iteration until it stopped.
    space : int
        B_max s_max, the paper's measure of the memory.
    time : float
        Sweeps times B_max s_max², the paper's measure of the work.
    overflow_cost_per_ms : float
        Δ, equation (15): what the overflow state adds to the average cost.
    average_cost : float
        g, equation (14): average cost per millisecond.
    """

    overflow_cost: float
    max_queue_length: int
    sweeps: int
    space: int
    time: float
    overflow_cost_per_ms: float
    average_cost: float


TABLE_1 = (
    TableRow(1e4, 89, 1847, 2848, 4.68e8, 9.36e-4, 66.1384),
    TableRow(1e3, 78, 1635, 2496, 3.18e8, 9.78e-4, 66.1383),
    TableRow(1e2, 70, 1483, 2240, 2.33e8, 8.36e-4, 66.1377),
    TableRow(10.0, 161, 10_000, 5152, 8.29e9, 6.14e-12, 66.1374),
    TableRow(0.0, 192, 10_000, 6144, 1.18e10, 1.30e-14, 66.1374),
)


def linear_profile(latency_ms: tuple[float, float], energy_mj: tuple[float, float]) -> Profile:
    """Make GoogLeNet on a Tesla P4 from its slopes and intercepts: per request, and fixed."""
    return Profile.from_dict(
        {
            "model": "googlenet",
            "device": "tesla-p4",
            "max_batch_size": MAX_BATCH_SIZE,
            "latency_ms": {"per_request": latency_ms[0], "fixed": latency_ms[1]},
            "energy_mj": {"per_request": energy_mj[0], "fixed": energy_mj[1]},
        }
    )
