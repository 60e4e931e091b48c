import io
import time

import pytest
from rich.console import Console

from policy.errors import InvalidInputError
from sojourn import service_view
from sojourn.cli import main
from sojourn.commands import top
from sojourn.commands.top import frame
from sojourn.service_view import FORGET_AFTER_S, ServiceView
from tests.support.http.canned_bytes import NO_ANSWERS, sending
from tests.support.models.emulated_service import emulated_service, infer
from tests.support.profiles import GOOGLENET_P4
from tests.support.service_reports import decided, entry, policy, watched


def drawn(snapshot, width=100):
    console = Console(width=width, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(frame(snapshot))
    return captured.get().splitlines()


def test_rates_are_those_of_all_replicas_in_the_last_minute():
    snapshot = watched(
        policy("a", answered=50, late=1, refused=3), policy("b", answered=140, failed=10)
    )
    assert snapshot["completed_per_s"] == pytest.approx(190 / 60)
    assert snapshot["refused_per_s"] == pytest.approx(3 / 60)
    assert snapshot["refused_per_s_by_reason"] == {"queue_full": pytest.approx(3 / 60)}
    assert snapshot["in_time"] == 1 - 11 / 200
    rates = [each["rates"]["completed"] for each in snapshot["replicas"]]
    assert rates == pytest.approx([50 / 60, 140 / 60])


def test_a_service_that_just_started_has_no_rates():
    snapshot = watched(policy(last_minute={"seconds": 0.0}))
    assert (snapshot["in_time"], snapshot["completed_per_s"]) == (None, None)


def test_a_replica_that_is_gone_is_forgotten():
    snapshot = watched(policy("a"), policy("b"), seconds_apart=FORGET_AFTER_S + 1)
    assert [each["replica"] for each in snapshot["replicas"]] == ["b"]


@pytest.mark.parametrize(("late", "failed", "status"), [(1, 0, 0), (2, 0, 1), (0, 2, 1), (1, 1, 1)])
def test_once_judges_the_last_minute_by_its_exit_status(monkeypatch, late, failed, status):
    document = policy(answered=100 - failed, late=late, failed=failed, refused=6)
    answers = {"/sojourn/autoscaler": decided(), "/sojourn/policy": document}
    monkeypatch.setattr(service_view, "_asker", lambda *_: answers.__getitem__)
    assert main(["top", "--once"]) == status


def test_a_long_reason_is_shown_to_its_end():
    reason = "scale out: " + 30 * "demand " + "end"
    lines = drawn(watched(policy(), decisions=[entry(0.0, 2, 1, reason)]), width=60)
    assert lines[-1].split()[-1] == "end"


def test_a_frame_names_what_is_wrong():
    fine = watched(policy(), decisions=[entry(0.0, 2, 1, "less load")])
    assert "less load" in "\n".join(drawn(fine))
    assert drawn({**fine, "unreachable": "no service answers"})[0] == "no service answers"
    assert "config not applied: sla" in drawn({**fine, "config_error": "sla"})[0]
    stuck = watched(policy(), decisions=[entry(0.0, 2, 1, stuck_replicas=1)])
    assert any("1 stuck" in line for line in drawn(stuck))


def test_lost_replicas_are_among_the_decisions_the_newest_first():
    lost = {"time_s": 5.0, "replica": "abc", "reason": "its process ended"}
    snapshot = watched(policy(), decisions=[entry(0.0, 2, 1), entry(9.0, 1, 2)], lost=[lost])
    frame = drawn(snapshot)
    assert [line.split(maxsplit=1)[1].strip() for line in frame[-3:]] == [
        "1 → 2  keep",
        "lost  abc: its process ended",
        "2 → 1  keep",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (8.7e-5, "0.0001"), (8.7e-7, "0"), (0.0123, "0.0123"), (1234.5, "1234")],
)
def test_numbers_have_three_digits_and_four_decimals(value, text):
    assert top._number(value) == text


def test_an_idle_replica_has_no_bottleneck_and_no_measured_times():
    busy, idle = (drawn(watched(policy(answered=count))) for count in (60, 0))
    assert [("device" in line, "80" in line) for line in ("\n".join(busy), "\n".join(idle))] == [
        (True, True),
        (False, False),
    ]


def test_a_pipeline_shows_its_stages():
    stage = {"name": "resize", "busy": 1, "workers": 2, "queue_length": 5, "latency_ms": 7.5}
    snapshot = watched(policy(stages=[{**stage, "budget_ms": 30.0}]))
    (line,) = (line for line in drawn(snapshot) if "resize" in line)
    assert line.split() == ["resize", "1", "2", "5", "7.5", "30"]


@pytest.mark.slow
async def test_a_real_replica_tells_what_is_shown():
    sla = {"response_time_ms": 5000, "percentile": 99}  # also on a busy machine
    async with emulated_service(GOOGLENET_P4, sla=sla) as service:
        for _ in range(3):
            await infer(service)
        await service.tick()
        answers = {"/sojourn/policy": service.explain(), "/sojourn/autoscaler": decided()}
    view = ServiceView("http://service", answers.__getitem__)
    view.poll()
    snapshot = view.snapshot()
    (replica,) = snapshot["replicas"]
    assert (snapshot["model"], snapshot["in_time"]) == ("m", 1)
    assert replica["control_limit"] >= 1
    assert replica["rates"]["completed"] == snapshot["completed_per_s"] > 0
    assert "99% of requests within 5000 ms" in drawn(snapshot)[1]


def test_a_service_that_goes_away_is_shown_again_when_it_is_back(monkeypatch):
    answers = {"/sojourn/autoscaler": decided(), "/sojourn/policy": policy()}
    away, screen, seen = iter([False, True, False]), io.StringIO(), []

    def ask(path):
        if path == "/sojourn/autoscaler" and next(away):
            raise InvalidInputError("no service answers")
        return answers[path]

    def sleep(_):
        seen.append(screen.getvalue())
        screen.seek(0)
        screen.truncate()
        if len(seen) == 3:
            raise KeyboardInterrupt

    terminal = Console(file=screen, force_terminal=True, width=80, height=24)
    monkeypatch.setattr(top, "Console", lambda: terminal)
    monkeypatch.setattr(service_view, "_asker", lambda *_: ask)
    monkeypatch.setattr(time, "sleep", sleep)
    assert main(["top"]) == 0
    assert ["no service answers" in one for one in seen] == [False, True, False]
    assert ["digits at http" in one for one in seen] == [True, False, True]
    assert screen.getvalue().endswith("\x1b[?25h\x1b[?1049l")  # the cursor and the shell are back


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--once", "--url", "127.0.0.1:8000"], "--url: must be like http://127.0.0.1:8000"),
        (["--once", "--interval-s", "5"], "--interval-s: a single poll has none"),
        ([], "top needs a terminal; use --once or --json without one"),
        (["--once", "--url", "http://127.0.0.1:9"], "no service answers at http://127.0.0.1:9 ("),
    ],
)
def test_a_user_error(refused, arguments, complaint):
    assert complaint in refused("top", *arguments)


@pytest.mark.parametrize("command", [["top", "--once"], ["explain"]])
def test_a_service_of_another_kind(refused, monkeypatch, command):
    monkeypatch.setattr(service_view, "_asker", lambda *_: lambda path: {})
    said = refused(*command, "--url", "http://s")
    assert said == "sojourn: http://s/sojourn/policy is not that of a Sojourn service"


def test_a_service_that_does_not_answer_to_the_end(refused):
    with sending(NO_ANSWERS["truncated"]) as url:
        assert f"sojourn: no service answers at {url} (" in refused("top", "--once", "--url", url)
