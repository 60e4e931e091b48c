"""Child processes that answer, and those that do not."""

from pathlib import Path

import pytest

from deployments.control import child_process
from deployments.errors import ChildError
from policy.errors import InfeasibleError

READ = "import json, os, sys, time; message = json.load(sys.stdin);"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the source file of a module that a child process can run as ``answer``."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "answer.py"


async def test_the_answer_is_what_the_process_writes(module: Path) -> None:
    module.write_text(f"{READ} json.dump({{'twice': 2 * message['x']}}, sys.stdout)")
    assert await child_process.call("answer", {"x": 3}) == {"twice": 6}


@pytest.mark.parametrize(
    ("source", "limit_s", "message"),
    [
        ("raise MemoryError('no memory')", 60, "MemoryError: no memory"),
        (f"{READ} os.kill(os.getpid(), 9)", 60, r"the process ended \(-9\)"),
        (f"{READ} print('{{')", 60, "wrote no JSON"),
        (f"{READ} time.sleep(60)", 0.2, "longer than 0.2 s"),
    ],
)
async def test_a_process_that_fails_may_do_better_next_time(
    module: Path, source: str, limit_s: float, message: str
) -> None:
    module.write_text(source)
    with pytest.raises(ChildError, match=message):
        await child_process.call("answer", {}, time_limit_s=limit_s)


async def test_an_error_that_the_process_reports_is_final(module: Path) -> None:
    module.write_text(f"{READ} json.dump({{'error': 'no policy'}}, sys.stdout)")
    with pytest.raises(InfeasibleError, match="no policy"):
        await child_process.call("answer", {})
