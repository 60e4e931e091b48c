import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoscaler.history.child import Question, answer_to, learn_beside
from autoscaler.history.learning import FleetSetting, Learned, learn
from autoscaler.history.source import HistorySource
from autoscaler.history.traces import Trace

END_S = 1_700_000_000
SETTING = FleetSetting("auto", 0.01, 0.99, 60.0, 20.0, 20.0, 22.0)
COUNTS = np.random.default_rng(0).poisson(20, 900)


@pytest.fixture
def packed(tmp_path: Path) -> bytes:
    rows = "".join(f"{END_S - 900 + i},{count}\n" for i, count in enumerate(COUNTS))
    (tmp_path / "past.csv").write_text("second,requests\n" + rows)
    return HistorySource(str(tmp_path / "past.csv")).pack().content


def answer(packed: bytes, question: Question) -> dict[str, Any]:
    message = json.dumps(asdict(question)).encode() + b"\n" + packed
    through_json: dict[str, Any] = json.loads(json.dumps(answer_to(message)))
    return through_json


def test_what_the_autoscaler_has_seen_itself_is_left_out(packed: bytes) -> None:
    question = Question(SETTING, now_s=END_S + 60.0, until_s=END_S - 100.0)
    expected = learn(Trace(COUNTS[:800].astype(float), 1, END_S - 900, True), SETTING)
    assert Learned.from_dict(answer(packed, question)["learned"]) == expected


def test_nothing_from_before_is_told(packed: bytes) -> None:
    question = Question(SETTING, now_s=END_S, until_s=END_S - 900.0)
    assert answer(packed, question) == {
        "error": "history: has nothing from before the service was watched"
    }


def test_what_cannot_be_read_is_told(packed: bytes) -> None:
    question = Question(SETTING, END_S, END_S)
    assert "incomplete, or not gzipped" in answer(packed[:-9], question)["error"]
    asked = HistorySource(prometheus="http://127.0.0.1:9", query="up").pack().content
    assert "does not answer" in answer(asked, question)["unreachable"]


@pytest.mark.slow
def test_it_is_learned_in_another_process(packed: bytes) -> None:
    done = learn_beside(packed, Question(SETTING, END_S, END_S)).result(timeout=60)
    expected = learn(Trace(COUNTS.astype(float), 1, END_S - 900, True), SETTING)
    assert Learned.from_dict(done["learned"]) == expected


@pytest.mark.slow
def test_a_process_that_fails_is_told_of_and_may_be_asked_again(
    packed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = Question(SETTING, END_S, END_S)
    failed = learn_beside(b"", question).result(timeout=60)
    assert "learned" not in failed
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert "No such file" in learn_beside(packed, question).result(timeout=60)["unreachable"]
