from pathlib import Path

import pytest

from policy.objective import ServiceLevelObjective
from policy.profile import Profile
from policy.service_model import service_model
from policy.tables.file import TableFile
from policy.try_delays import RETRIES, TryDelays
from sojourn.cli import main

PROFILE = Path(__file__).parents[3] / "configs" / "profiles" / "googlenet-p4.json"
RATE = 0.9 * Profile.load(PROFILE).capacity_per_s


def arguments(*more, rate=RATE, profile=PROFILE):
    return ["solve", f"--profile={profile}", f"--arrival-rate={rate!r}", *more]


@pytest.fixture
def solve(as_json):
    return lambda *more, **values: as_json(*arguments(*more, **values))


def test_the_setting_of_the_paper(solve):
    content = solve("--energy-weight", "1")
    assert content["control_limit"] == 7
    assert content["actions"] == [0] * 7 + list(range(7, 33))
    assert content["average_cost"] == pytest.approx(66.134, abs=5e-4)
    assert content["average_cost"] == pytest.approx(
        content["mean_response_ms"] + content["mean_power_w"]
    )
    percentiles = content["response_percentiles_ms"]
    assert list(percentiles) == ["50", "90", "95", "99", "99.9"]
    assert sorted(percentiles.values()) == list(percentiles.values())
    assert set(content["response_percentile_errors_ms"].values()) == {0}
    assert content["max_wait_ms"] is None
    assert content["solve_ms"] > 0


def test_an_sla_is_kept_with_less_power_than_by_starting_whenever_free(solve):
    sla = solve("--response-time-ms", "10", "--percentile", "99", rate=1200)
    one_option = solve("--sla", "10ms@99", rate=1200)
    assert {**sla, "solve_ms": 0} == {**one_option, "solve_ms": 0}
    greedy = solve("--batching", "work-conserving", rate=1200)
    assert sla["meets_sla"] is True
    assert sla["response_percentiles_ms"]["99"] <= 10
    assert sla["service_level"] >= 0.99
    assert sla["mean_power_w"] < 0.8 * greedy["mean_power_w"]


@pytest.mark.slow
def test_an_infeasible_sla_is_reported(solve, capsys):
    assert solve("--response-time-ms", "10")["meets_sla"] is False
    assert main(arguments("--response-time-ms", "10")) == 0
    assert "No policy keeps 99% within 10 ms" in capsys.readouterr().err


@pytest.mark.parametrize(("method", "more"), [("rvi", ["--overflow-cost=100"]), ("pi", [])])
def test_the_papers_method_finds_the_same_policy(solve, method, more):
    exact = solve("--energy-weight=1")
    found = solve("--energy-weight=1", f"--method={method}", *more)
    assert found["actions"] == exact["actions"]
    assert found["average_cost"] == pytest.approx(exact["average_cost"])
    # Table I: queues of 70 suffice; the search tries longer ones in steps of 5%.
    assert 70 <= found["truncated"]["max_queue_length"] <= 74
    assert found["truncated"]["overflow_cost_per_ms"] < 1e-3


@pytest.mark.slow
def test_the_exported_table_is_that_of_a_service(solve, tmp_path):
    file = tmp_path / "table.json"
    solve("--sla=10ms@99", f"--export={file}", rate=1200)
    sla, read = ServiceLevelObjective(10.0, 99.0), TableFile.load(str(file))
    service = service_model(Profile.load(PROFILE), sla, TryDelays(retries=RETRIES))
    assert service.profile.max_batch_size < 32
    assert read.profile.max_batch_size == service.profile.max_batch_size
    assert (read.objective, read.table) == (service.objective, service.table)


@pytest.mark.slow
def test_a_plot_is_drawn_with_the_sla_marked(solve, tmp_path):
    solve(f"--plot={tmp_path / 'policy.png'}", "--response-time-ms=25")
    assert (tmp_path / "policy.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_profile_without_energy_near_a_capacity_that_the_largest_batch_does_not_have(
    solve, refused, tmp_path
):
    profile = tmp_path / "profile.json"
    profile.write_text('{"latency_ms": [1.0, 1.2, 4.0]}')
    content = solve(f"--plot={tmp_path / 'policy.png'}", rate=1500, profile=profile)
    assert content["mean_power_w"] is None
    assert content["average_cost"] == content["mean_response_ms"]
    message = refused(*arguments("--energy-weight=1", rate=500, profile=profile))
    assert "energy weight: must be 0 for a profile without energy_mj" in message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "rate", "message"),
    [
        ([], float("nan"), "'--arrival-rate': must be a finite number, not nan"),
        ([], 2960.0, "2960 per second is not below the 2958.8 per second"),
        (["--batching=static:8"], 2700.0, "the policy serves at most 2290"),
        (["--latency-weight=0"], 900.0, "latency weight: must be above 0, not 0"),
        (["--response-time-ms=1"], 900.0, "takes 1.3571 ms"),
        (["--batching=best"], 900.0, "must be one of work-conserving, static:B, timeout:B:T"),
        (
            ["--batching=static:8", "--export=x.json"],
            900.0,
            "--export: writes what is solved; omit",
        ),
        (["--batching=static:8", "--sla=9ms@99"], 900.0, "--batching: fixes the whole policy"),
        (["--plot=/none/such/policy.png"], 900.0, "there is no folder /none/such."),
        (["--plot=policy.xyz"], 900.0, "--plot policy.xyz: "),
        (["--max-queue=70"], 900.0, "--overflow-cost, --max-queue: need --method rvi or pi"),
        (["--method=pi", "--sla=9ms@99"], 900.0, "--method pi: solves one rate for weights; omit"),
        (["--method=pi", "--max-queue=31"], 900.0, "max queue length: must be at least 32, not 31"),
        (["--export=/none/x.json"], 900.0, "there is no folder /none."),
    ],
)
def test_bad_options(refused, more, rate, message):
    assert message in refused(*arguments(*more, rate=rate))
