"""The front's costs: the fit is exact, the clients read HTTP, and a real loop can be measured."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.models.base import Model, TensorSpec
from deployments.profiling.closed_loop import answer_length
from deployments.profiling.front_costs import (
    LoopWork,
    fit_costs,
    measure_front,
    runs_on_the_cpu,
)
from policy.profile import Profile


class Doubles(Model):
    inputs = (TensorSpec("x", "FP32", (2,)),)
    outputs = (TensorSpec("y", "FP32", (2,)),)

    def load(self, device): ...

    def forward(self, batch):
        return {"y": 2 * batch["x"]}


class Sleeps(Doubles):
    def forward(self, batch):
        time.sleep(0.002)
        return super().forward(batch)


class Computes(Doubles):
    def forward(self, batch):
        until_s = time.process_time() + 0.002
        while time.process_time() < until_s:
            pass
        return super().forward(batch)


costs_ms = st.floats(0.001, 1)


def work(size, request_ms, batch_ms, disturbed=1.0):
    batches = 960 // size
    return LoopWork(disturbed * (960 * request_ms + batches * batch_ms), 960, batches)


@given(request_ms=costs_ms, batch_ms=costs_ms)
def test_the_fit_finds_the_costs_whatever_a_minority_of_intervals_says(request_ms, batch_ms):
    rows = [
        work(size, request_ms, batch_ms, disturbed)
        for size in (1, 2, 4, 8, 16)
        for disturbed in (1.0, 1.0, 3.0)
    ]
    costs = fit_costs(rows, shares_cpu=True)
    assert (costs.request_ms, costs.batch_ms) == pytest.approx((request_ms, batch_ms), abs=2e-6)
    assert costs.shares_cpu


@pytest.mark.parametrize(
    ("received", "length"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n", None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", 43),
        (b"HTTP/1.1 200 OK\r\ncontent-length:5\r\nX: 1\r\n\r\nhelloHTTP/1.1", 48),
    ],
)
def test_clients_know_where_an_answer_ends(received, length):
    assert answer_length(received) == length


def test_an_answer_without_a_length_is_not_guessed_at():
    with pytest.raises(ValueError, match="no content-length"):
        answer_length(b"HTTP/1.1 200 OK\r\n\r\nhello")


def test_a_device_that_leaves_the_processor_alone_is_known_by_its_cpu_time():
    assert runs_on_the_cpu(Computes(), 1)
    assert not runs_on_the_cpu(Sleeps(), 1)


@pytest.mark.slow
def test_a_real_loop_is_measured():
    """Any machine reads and answers a request in 5 µs to 5 ms of CPU time."""
    costs = measure_front(Doubles(), Profile("m", "d", np.full(16, 1.0)), shares_cpu=False)
    assert 0.005 < costs.request_ms < 5
    assert 0 <= costs.batch_ms < 5
    assert np.isfinite(costs.ms_per_request(4))
