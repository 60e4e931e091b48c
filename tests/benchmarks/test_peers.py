import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from benchmarks.live import data_path
from benchmarks.peers import goodput, overload
from benchmarks.peers.environments import REQUIREMENTS, UnavailableError
from benchmarks.peers.models import DEVICE_PROFILE, HOSTED, stack, unstack
from benchmarks.peers.open_loop import Run, open_loop
from benchmarks.peers.protocols import (
    BatchOfObjects,
    Dialect,
    Objects,
    OpenInference,
    Questions,
    example_rows,
)
from benchmarks.peers.servers import SERVERS
from benchmarks.peers.sojourn_config import PERCENTILE
from deployments.errors import StartError
from deployments.http.inference_protocol import Signature, parse_request
from loadtests.records import Outcome, Records
from policy.baseline_policies import work_conserving
from policy.profile import Profile
from policy.response_time.evaluation import evaluate


def echoing(count: int, dialect: Dialect | None = None) -> Questions:
    values = np.arange(1, count + 1, dtype=np.float32)[:, np.newaxis]
    return Questions("emulated", dialect or Objects("/"), {"input": values})


def random_rows(name: str, count: int) -> dict[str, np.ndarray]:
    if name == "minilm":
        return example_rows(name, count)
    random = np.random.default_rng(1)
    return {
        spec.name: random.uniform(0, 16, (count, *spec.shape)).astype(np.float32)
        for spec in HOSTED[name].load().inputs
    }


class Echo(BaseHTTPRequestHandler):
    """Echoes each request's value; those up to 3 wait until `go`, to the value 9 it says 10."""

    protocol_version = "HTTP/1.1"
    go: threading.Event

    def do_POST(self) -> None:
        (value,) = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
        if value <= 3:
            self.go.wait(10)
        body = json.dumps({"output": [10 if value == 9 else value]}).encode()
        self.send_response(503 if value == 5 else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(BrokenPipeError):  # the client may have left
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def echo_server(go: threading.Event) -> Iterator[int]:
    handler = type("Handler", (Echo,), {"go": go})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        go.set()
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_stall_counts_for_all_who_were_due_in_it_and_answers_are_checked() -> None:
    go = threading.Event()
    arrivals_s = np.arange(10) * 0.01

    def look(run: Run) -> bool:
        # The seven others are answered first; only then may the stalled ones be.
        if np.isfinite(run.records.finished_s[3:]).all():
            go.set()
        return False

    with echo_server(go) as port:
        run = open_loop(echoing(10), arrivals_s, hopeless=look, port=port)
    records = run.records
    assert records.outcome.tolist() == [1, 1, 1, 1, 503, 1, 1, 1, Outcome.WRONG, 1]
    last_s = np.nanmax(records.finished_s[3:])
    assert (records.finished_s[:3] >= last_s).all()
    # They count from when they were due, though the later ones left the client no later.
    assert (np.diff(records.response_ms[:3]) < 0).all()


def test_who_has_no_patience_leaves_and_the_rest_is_answered() -> None:
    go = threading.Event()
    patience_s = np.array([0.05, 0.05, 0.05, 10, 10])

    def look(run: Run) -> bool:
        return False

    with echo_server(go) as port:
        run = open_loop(echoing(5), np.zeros(5), patience_s, look, port)
    assert run.records.outcome.tolist() == [Outcome.TIMEOUT] * 3 + [Outcome.OK, 503]
    assert not goodput.in_time(run)[[0, 1, 2, 4]].any()


def test_a_server_that_never_answers_keeps_no_sla(monkeypatch: pytest.MonkeyPatch) -> None:
    with echo_server(threading.Event()) as closed_port:
        pass
    monkeypatch.setattr(goodput, "open_loop", partial(open_loop, port=closed_port))
    for rate_per_s in (10, 400):
        probe = goodput._probe(echoing(10), rate_per_s, 0.5)
        assert not probe.holds


def test_what_is_possible_keeps_the_sla_and_little_more_does_not() -> None:
    possible_per_s = goodput.possible_rate_per_s()
    profile = Profile.from_dict(DEVICE_PROFILE)

    def kept(rate_per_s: float) -> bool:
        evaluation = evaluate(profile, work_conserving(profile), rate_per_s)
        return evaluation.service_level(goodput.RESPONSE_TIME_MS) >= PERCENTILE / 100

    # Near its capacity, a device has no time to wait for others.
    assert kept(0.999 * possible_per_s)
    assert not kept(1.01 * possible_per_s)


@pytest.mark.parametrize("name", ["mlp", "emulated", "digits", "minilm"])
def test_what_a_peer_answers_to_its_dialect_is_right_and_anothers_answer_is_wrong(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "minilm":
        pytest.importorskip("tokenizers")
        monkeypatch.setattr("deployments.models.sentences.MEASURE_BUDGET_S", 0.0)
    model, rows = HOSTED[name].load(), random_rows(name, 3)
    for dialect, unwrap, wrap in (
        (Objects("/"), lambda body: body, lambda answer: answer),
        (BatchOfObjects("/"), lambda body: body["rows"][0], lambda answer: [answer]),
    ):
        questions = Questions(name, dialect, rows)
        asked = [unwrap(json.loads(body)) for body in questions.bodies]
        answers = unstack(model.forward(stack(model, asked)))
        for number in range(3):
            for other in range(3):
                body = json.dumps(wrap(answers[other])).encode()
                assert questions.right(number, body) == (number == other)
        assert not questions.right(0, b"{}")
        assert not questions.right(0, b"<html>")


def test_the_open_inference_dialect_is_what_sojourn_parses() -> None:
    model, rows = HOSTED["mlp"].load(), random_rows("mlp", 2)
    questions = Questions("mlp", OpenInference(), rows)
    signature = Signature(model.inputs, model.outputs, max_rows=1)
    for row, body in zip(rows["x"], questions.bodies, strict=True):
        np.testing.assert_array_equal(parse_request(body, None, signature).inputs["x"], [row])


def test_device_time_is_shared_out_and_what_was_for_nobody_is_told(tmp_path: Path) -> None:
    records = Records.begin(np.zeros(4))
    records.outcome[:] = [Outcome.OK, Outcome.OK, Outcome.TIMEOUT, Outcome.TIMEOUT]
    records.finished_s[:] = [0.10, 0.30, 0.01, 0.09]
    run = Run(100.0, records, [b""] * 4)
    batches = [
        {"started_s": 99.0, "ended_s": 99.9, "values": [1]},  # before the run: not of it
        {"started_s": 100.05, "ended_s": 100.09, "values": [1, 2, 3, 4]},
        {"started_s": 100.1, "ended_s": 100.14, "values": [2]},
    ]
    log = tmp_path / "batches"
    log.write_text("".join(json.dumps(batch) + "\n" for batch in batches))
    wasted, gone = overload._device_time(run, goodput.in_time(run), log)
    # 80 ms in all: 10 for the one in time; 10 for the one who had left before the start.
    assert (wasted, gone) == (pytest.approx(70 / 80), pytest.approx(10 / 80))


def test_poison_fails_its_batch_and_no_other() -> None:
    device = HOSTED["emulated"].load()
    with pytest.raises(ValueError, match="below 0"):
        device.forward({"input": np.array([[1], [-2]], np.float32)})
    np.testing.assert_array_equal(
        device.forward({"input": np.array([[1]], np.float32)})["output"], [[1]]
    )


def test_an_answer_in_time_is_one_within_the_sla_of_its_model() -> None:
    records = Records.begin(np.zeros(3))
    records.outcome[:] = [Outcome.OK, Outcome.OK, Outcome.TIMEOUT]
    records.finished_s[:] = [0.015, 0.1, 0.01]
    run = Run(0.0, records, [b""] * 3)
    assert goodput.in_time(run, 20.0).tolist() == [True, False, False]
    assert goodput.in_time(run).tolist() == [True, True, False]


def test_sentences_are_for_the_servers_that_have_their_packages() -> None:
    assert "minilm" in SERVERS["sojourn"].hosts
    assert "minilm" not in SERVERS["mosec"].hosts
    assert set(SERVERS["mosec"].hosts) == set(HOSTED) - {"minilm"}


def test_what_cannot_be_measured_is_left_out_and_said() -> None:
    results = data_path.Results(1.0)
    with data_path._noted("mosec", "mlp", results):
        raise UnavailableError("cannot be installed")
    with data_path._noted("mosec", "minilm", results):
        raise StartError("weights are not installed")
    assert results.to_dict()["unavailable"] == {
        "mosec": "mlp: cannot be installed; minilm: weights are not installed"
    }


def test_every_environment_is_pinned_exactly() -> None:
    for server in SERVERS.values():
        if server.environment:
            lines = (REQUIREMENTS / f"{server.environment}.txt").read_text().splitlines()
            pins = [line for line in lines if not line.startswith("#")]
            assert "torch==2.13.0" in pins
            assert all(pin.count("==") == 1 for pin in pins)
