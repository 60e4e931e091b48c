"""Answers of HAProxy's admin socket, understood or refused."""

import math

import numpy as np
import pytest

from deployments.haproxy.admin_answers import (
    MEAN_OVER_REQUESTS,
    HaproxyAnswerError,
    MeanTimes,
    ServerTimes,
    means_since,
    parse_server_times,
)
from tests.support.haproxy_answers import HEADER, table


def times(requests: int, total_ms: float, earlier_tries_ms: float = 0.0) -> ServerTimes:
    return ServerTimes(requests, MeanTimes(total_ms, earlier_tries_ms))


def test_the_server_is_found_by_the_end_of_its_name() -> None:
    assert parse_server_times(table(1000, 43, 40), "-x7") == times(1000, 43.0, 40.0)
    assert parse_server_times(table(1000, 43, 40), "-gone") is None


def test_a_server_without_requests_has_empty_columns() -> None:
    text = f"{HEADER}\nhttp-a,r-x7,0,,,,,0,,,\n"
    assert parse_server_times(text, "-x7") == times(0, 0.0)


@pytest.mark.parametrize("text", ["# pxname,svname\na,r-x7\n", f"{HEADER}\na,r-x7,many,0,0,0,0,\n"])
def test_a_table_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(HaproxyAnswerError, match="not understood"):
        parse_server_times(text, "-x7")


@pytest.mark.parametrize("requests", [100, 500, 5000])
@pytest.mark.parametrize("before", [0, 7, 450, 3000])
def test_the_mean_of_the_new_requests_is_recovered_from_the_running_mean(
    requests: int, before: int
) -> None:
    """A HAProxy that has just started has a plain mean of its few requests."""
    begin = (10.0, 90.0) if before else (0.0, 0.0)
    total, earlier = begin
    for number in range(before + 1, before + requests + 1):
        total += (250.0 - total) / min(number, MEAN_OVER_REQUESTS)
        earlier += (30.0 - earlier) / min(number, MEAN_OVER_REQUESTS)
    found = means_since(times(before, *begin), times(before + requests, total, earlier))
    assert found is not None
    assert math.isclose(found.total_ms, 250.0, rel_tol=2e-3)
    assert math.isclose(found.earlier_tries_ms, 30.0, rel_tol=5e-3)


@pytest.mark.parametrize("most_ms", [1, 3, 20])
def test_looks_at_means_in_whole_ms_are_right_on_average(most_ms: int) -> None:
    """HAProxy keeps a whole sum, and rounds up what it forgets of it and what it tells."""
    random = np.random.default_rng(4)
    most, running, requests = MEAN_OVER_REQUESTS, 0, 0
    before, found, truth = times(0, 0.0), list[float](), list[float]()
    for _ in range(400):
        new_ms = random.integers(0, most_ms + 1, 300)
        for time_ms in new_ms.tolist():
            requests += 1
            running += time_ms - (-(-running // most) if requests > most else 0)
        told_ms = -(-running // min(requests, most))
        now = times(requests, told_ms)
        means = means_since(before, now)
        assert means is not None
        found.append(means.total_ms)
        truth.append(float(new_ms.mean()))
        before = now
    assert np.mean(found) == pytest.approx(np.mean(truth), abs=0.03)


def test_a_few_requests_say_nothing() -> None:
    assert means_since(times(0, 1), times(99, 50)) is None
