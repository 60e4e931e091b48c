"""How many threads the mathematics under a model may use: as many as the replica has CPUs.

BLAS and OpenMP start a thread for every core of the machine. In a replica with one CPU these spin
for turns on it, and everything else waits. A profile is measured with the same number.
"""

import os
import sys

from threadpoolctl import threadpool_limits

_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def limit_threads(cpus: float) -> None:
    """Let BLAS, OpenMP and torch use one thread per CPU, in this process from now on.

    Libraries that are loaded later, and processes started later, read it from the environment.
    Only libraries loaded so far are changed at once; torch is not loaded for this. OpenMP keeps a
    number for each thread, so call this in every thread that computes.

    Parameters
    ----------
    cpus : float
        CPUs of the process; a fraction counts as one more, and there is at least one thread.
    """
    threads = threads_for(cpus)
    for variable in _VARIABLES:
        os.environ[variable] = str(threads)
    # The object would restore the old limits only if it were used as a context.
    threadpool_limits(limits=threads)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)


def threads_in_use(cpus: float) -> int:
    """Return torch's number of threads, which a model may have set, or else that for `cpus`."""
    torch = sys.modules.get("torch")
    return threads_for(cpus) if torch is None else int(torch.get_num_threads())


def threads_for(cpus: float) -> int:
    """Return the number of threads for a number of CPUs: rounded up, at least 1."""
    return max(1, -int(-cpus // 1))


def thread_cpu_wait_s() -> float | None:
    """Return for how long the calling thread was ready to run, but had no CPU, since it began.

    That is the kernel's own account (``/proc/thread-self/schedstat``). None if it keeps none, or if
    the process may run on one CPU only: then this includes waiting for its own threads.
    """
    try:
        if len(os.sched_getaffinity(0)) == 1:
            return None
        with open("/proc/thread-self/schedstat", encoding="ascii") as file:
            ran_ns, waited_ns, _ = file.read().split()
    except (AttributeError, OSError, ValueError):
        return None
    return 1e-9 * int(waited_ns) if int(ran_ns) else None
