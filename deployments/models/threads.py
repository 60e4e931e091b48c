"""Limit the threads of a model's numerical libraries to the replica's CPUs.

BLAS and OpenMP start a thread for every core of the machine. In a replica with one CPU these
compete for it, and everything else waits. A profile is measured with the same number.
"""

import os
import sys

from threadpoolctl import threadpool_limits

_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def limit_threads(cpus: float) -> None:
    """Limit BLAS, OpenMP and torch to one thread per CPU, from now on.

    Libraries and processes that start later read it from the environment. Only loaded libraries
    change at once; torch is not loaded for this. OpenMP has a number per thread, so call this in
    every thread that computes.
    """
    threads = threads_for(cpus)
    for variable in _VARIABLES:
        os.environ[variable] = str(threads)
    # The object would restore the old limits only as a context manager.
    threadpool_limits(limits=threads)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)


def threads_in_use(cpus: float) -> int:
    """Return torch's number of threads, which a model may have set, or the number for `cpus`."""
    torch = sys.modules.get("torch")
    return threads_for(cpus) if torch is None else int(torch.get_num_threads())


def threads_for(cpus: float) -> int:
    """Return the number of threads for a number of CPUs: rounded up, at least 1."""
    return max(1, -int(-cpus // 1))


def thread_cpu_wait_s() -> float | None:
    """Return how long the calling thread has been ready to run without a CPU.

    This is the kernel's account (``/proc/thread-self/schedstat``). None if there is none, or if the
    process may run on one CPU only, where it includes waiting for the process's own threads.
    """
    try:
        if len(os.sched_getaffinity(0)) == 1:
            return None
        with open("/proc/thread-self/schedstat", encoding="ascii") as file:
            ran_ns, waited_ns, _ = file.read().split()
    except (AttributeError, OSError, ValueError):
        return None
    return 1e-9 * int(waited_ns) if int(ran_ns) else None
