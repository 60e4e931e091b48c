import os
import time

import pytest

from deployments.models.threads import thread_cpu_wait_s, threads_for


@pytest.mark.parametrize(("cpus", "threads"), [(0.1, 1), (1, 1), (1.5, 2), (4, 4)])
def test_threads_are_the_cpus_rounded_up(cpus, threads):
    assert threads_for(cpus) == threads


def test_the_kernel_counts_what_a_thread_waits_for_a_cpu(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    began_s, began_cpu_s = time.monotonic(), time.thread_time()
    before_s = thread_cpu_wait_s()
    while time.thread_time() < began_cpu_s + 0.02:
        pass
    after_s = thread_cpu_wait_s()
    # A thread that neither sleeps nor computes waits for a CPU, or for the hypervisor.
    waited_s = time.monotonic() - began_s - (time.thread_time() - began_cpu_s)
    assert 0 <= after_s - before_s <= waited_s + 0.001
