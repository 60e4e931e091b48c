import json
import shutil
import subprocess
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import numpy as np
import pytest

from autoscaler.history.prometheus import UnreachableError, query_range
from policy.errors import InvalidInputError
from tests.support.http.canned_bytes import NO_ANSWERS, sending
from tests.support.metrics.prometheus import Prometheus
from tests.support.ports import free_port

BEGIN_S = 1_700_000_040  # a whole minute


@contextmanager
def answering(answer):
    """Serve what `answer` returns for each query: the status, and JSON or bytes."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            asked = {name: values[0] for name, values in parse_qs(body).items()}
            status, content = answer({"path": self.path, **asked})
            self.send_response(status)
            self.end_headers()
            self.wfile.write(
                content if isinstance(content, bytes) else json.dumps(content).encode()
            )

        def log_message(self, format, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def matrix(*series):
    result = [{"metric": {}, "values": values} for values in series]
    return {"status": "success", "data": {"resultType": "matrix", "result": result}}


def test_whole_minutes_are_asked_for():
    """A point stands for the minute before it, and a missing or NaN one is not known."""
    asked = []

    def answer(query):
        asked.append(query)
        times = range(int(query["start"]), int(query["end"]) + 1, 60)
        minutes = [(time_s, (time_s - BEGIN_S) // 60) for time_s in times]
        return 200, matrix(
            [(t, "NaN" if m == 5 else str(0.5 * m)) for t, m in minutes if 2 < m < 9 and m != 7]
        )

    with answering(answer) as url:
        trace = query_range(url, "rate(x[1m])", BEGIN_S, BEGIN_S + 10 * 60 + 30)
    assert [(q["path"], q["query"], q["step"]) for q in asked] == [
        ("/api/v1/query_range", "rate(x[1m])", "60")
    ]
    spans = [(int(q["start"]) - BEGIN_S, int(q["end"]) - BEGIN_S) for q in asked]
    assert spans == [(60, 600)]
    # Points 3, 4, 6 and 8: 0.5 requests per second more each, over the minutes before them.
    np.testing.assert_array_equal(trace.counts, [90, 120, np.nan, 180, np.nan, 240])
    assert (trace.begin_s, trace.step_s, trace.is_absolute) == (BEGIN_S + 120, 60, True)


@pytest.mark.parametrize(
    ("status", "content", "complaint"),
    [
        (400, {"status": "error", "error": "parse error\nat 3"}, "answers 400: .*parse error"),
        (200, b"<html>", "does not answer like Prometheus"),
        (200, {"data": {"result": [{"value": [1, "2"]}]}}, "does not answer like Prometheus"),
        (200, matrix([(BEGIN_S, "NaN")]), r"has no values of 'up' in this time"),
        (200, matrix([(BEGIN_S, "1")], [(BEGIN_S, "2")]), r"one series, not 2; .*: sum\(up\)"),
    ],
)
def test_an_answer_that_cannot_be_used_is_reported_in_one_line(status, content, complaint):
    with (
        answering(lambda query: (status, content)) as url,
        pytest.raises(InvalidInputError, match=complaint) as caught,
    ):
        query_range(url, "up", BEGIN_S - 600, BEGIN_S)
    assert "\n" not in str(caught.value)


def test_a_server_that_fails_may_do_better_later():
    with (
        answering(lambda query: (503, b"")) as url,
        pytest.raises(UnreachableError, match="answers 503"),
    ):
        query_range(url, "up", BEGIN_S - 600, BEGIN_S)
    with (
        sending(NO_ANSWERS["ssh"]) as url,
        pytest.raises(UnreachableError, match=r"does not answer \(SSH-2.0"),
    ):
        query_range(url, "up", BEGIN_S - 600, BEGIN_S)


@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")),
    reason="needs Debian's package prometheus",
)
def test_a_real_prometheus_is_asked(tmp_path):
    """Its past is filled with a counter that rises by a known number of requests each minute."""
    minutes, samples = 3 * 24 * 60, 4
    end_s = int(time.time()) // 7200 * 7200 - 7200
    begin_s = end_s - minutes * 60
    rates = 150 + 100 * np.sin(2 * np.pi * np.arange(samples * minutes) / (samples * 24 * 60))
    counts = np.random.default_rng(3).poisson(rates)
    totals = np.concatenate(([0], np.cumsum(counts)))
    lines = [f"requests_total {t} {begin_s + 60 / samples * i:.0f}" for i, t in enumerate(totals)]
    text = "\n".join(["# TYPE requests counter", *lines, "# EOF", ""])
    (tmp_path / "past.txt").write_text(text)
    fill = ["promtool", "tsdb", "create-blocks-from", "openmetrics"]
    subprocess.run([*fill, "past.txt", "data"], cwd=tmp_path, check=True, capture_output=True)
    with Prometheus(tmp_path, f"127.0.0.1:{free_port()}") as server:
        trace = query_range(server.url, "sum(rate(requests_total[1m]))", begin_s, end_s)
        with pytest.raises(InvalidInputError, match=r"answers 400: .*parse error"):
            query_range(server.url, "sum(", begin_s, end_s)
        with pytest.raises(InvalidInputError, match="has no values"):
            query_range(server.url, "other_total", begin_s, end_s)
    assert trace.step_s == 60
    assert minutes - 3 <= trace.counts.size <= minutes + 1
    first = (trace.begin_s - begin_s) // 60
    expected = counts.reshape(-1, samples).sum(axis=1)[first : first + trace.counts.size]
    # Later versions of Prometheus extrapolate from the samples within a minute to all of it.
    assert np.corrcoef(trace.counts, expected)[0, 1] > 0.99
    assert trace.counts.sum() == pytest.approx(expected.sum(), rel=0.01)
