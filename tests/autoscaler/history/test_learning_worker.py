from pathlib import Path

import numpy as np
import pytest

from autoscaler.history.learning import FleetSetting, learn
from autoscaler.history.learning_worker import Question, learn_from, learn_in_worker
from autoscaler.history.prometheus import UnreachableError
from autoscaler.history.source import HistorySource
from autoscaler.history.traces import Trace
from autoscaler.worker import WorkerError
from policy.errors import InvalidInputError

END_S = 1_700_000_000
SETTING = FleetSetting(0.01, 0.99, 60.0, 20.0, 20.0, 22.0)
COUNTS = np.random.default_rng(0).poisson(20, 900)


@pytest.fixture
def packed(tmp_path: Path) -> bytes:
    rows = "".join(f"{END_S - 900 + i},{count}\n" for i, count in enumerate(COUNTS))
    (tmp_path / "past.csv").write_text("second,requests\n" + rows)
    return HistorySource(str(tmp_path / "past.csv")).pack().content


def test_what_the_autoscaler_has_seen_itself_is_left_out(packed: bytes) -> None:
    question = Question(SETTING, now_s=END_S + 60.0, until_s=END_S - 100.0)
    expected = learn(Trace(COUNTS[:800].astype(float), 1, END_S - 900, True), SETTING)
    assert learn_from(packed, question) == expected
    with pytest.raises(InvalidInputError, match="nothing from before the service was watched"):
        learn_from(packed, Question(SETTING, now_s=END_S, until_s=END_S - 900.0))


@pytest.mark.slow
def test_the_worker_process_returns_the_same_or_the_error(
    packed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = Question(SETTING, END_S, END_S)
    assert learn_in_worker(packed, question).result(60) == learn_from(packed, question)
    with pytest.raises(InvalidInputError, match="incomplete, or not gzipped"):
        learn_in_worker(packed[:-9], question).result(60)
    asked = HistorySource(prometheus="http://127.0.0.1:9", query="up").pack().content
    with pytest.raises(UnreachableError, match="does not answer"):
        learn_in_worker(asked, question).result(60)
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(WorkerError, match="No such file"):
        learn_in_worker(packed, question).result(60)
