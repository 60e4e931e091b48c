import json
from pathlib import Path

import pytest

from policy.objective import Weights
from policy.profile import Profile
from policy.solvers import exact
from sojourn.cli import main

PROFILE = Path(__file__).parents[2] / "configs" / "profiles" / "googlenet-p4.json"
RATE = 0.9 * Profile.load(PROFILE).capacity_per_s


def arguments(*more, rate=RATE, profile=PROFILE):
    return ["solve", f"--profile={profile}", f"--arrival-rate={rate!r}", *more]


def solve(capsys, *more, **values):
    assert main([*arguments(*more, **values), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refusal(capsys, *more, **values):
    assert main(arguments(*more, **values)) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("sojourn: ")
    assert output.err.count("\n") == 1
    return output.err


def test_the_setting_of_the_paper(capsys):
    content = solve(capsys, "--energy-weight", "1")
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


def test_the_means_are_those_of_the_solver(capsys):
    content = solve(capsys, "--energy-weight", "1", rate=900)
    solution = exact.solve(Profile.load(PROFILE), 900, Weights(1, 1))
    assert content["mean_response_ms"] == solution.averages.mean_response_ms
    assert content["mean_power_w"] == solution.averages.mean_power_w
    assert content["average_cost"] == pytest.approx(solution.averages.average_cost, rel=1e-14)


def test_an_sla_is_kept_with_less_power_than_by_starting_whenever_free(capsys):
    sla = solve(capsys, "--response-time-ms", "10", "--percentile", "99", rate=1200)
    greedy = solve(capsys, "--batching", "work-conserving", rate=1200)
    assert sla["meets_sla"] is True
    assert sla["response_percentiles_ms"]["99"] <= 10
    assert sla["service_level"] >= 0.99
    assert sla["mean_power_w"] < 0.8 * greedy["mean_power_w"]


@pytest.mark.slow
def test_an_infeasible_sla_is_reported(capsys):
    assert solve(capsys, "--response-time-ms", "10")["meets_sla"] is False
    assert main(arguments("--response-time-ms", "10")) == 0
    assert "No policy keeps 99% within 10 ms" in capsys.readouterr().err


def test_prints_a_table(capsys):
    assert main(arguments("--energy-weight", "1")) == 0
    output = capsys.readouterr().out
    for text in ("control limit", "66.13", "0 to 6", "waits", "7 to 31", "32 or more", "starts 32"):
        assert text in output


@pytest.mark.slow
@pytest.mark.parametrize("more", [["--energy-weight=1"], ["--response-time-ms=25"]])
def test_a_plot_is_drawn(capsys, tmp_path, more):
    path = tmp_path / "policy.png"
    assert "control_limit" in solve(capsys, f"--plot={path}", *more)
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_profile_without_energy(capsys, tmp_path):
    profile = tmp_path / "profile.json"
    profile.write_text('{"latency_ms": [1.0, 1.2, 1.4]}')
    content = solve(capsys, f"--plot={tmp_path / 'policy.png'}", rate=500, profile=profile)
    assert content["mean_power_w"] is None
    assert content["average_cost"] == content["mean_response_ms"]
    message = refusal(capsys, "--energy-weight=1", rate=500, profile=profile)
    assert "energy weight: must be 0 for a profile without energy_mj" in message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "rate", "message"),
    [
        ([], float("nan"), "'--arrival-rate': must be a finite number, not nan"),
        ([], 2960.0, "2960 per second is not below the 2958.8 per second"),
        (["--batching=static:8"], 2700.0, "the policy serves at most 2290"),
        (["--latency-weight=0"], 900.0, "latency weight: must be above 0, not 0"),
        (["--energy-weight=-1"], 900.0, "energy weight: must be at least 0, not -1"),
        (["--response-time-ms=1"], 900.0, "takes 1.3571 ms"),
        (["--response-time-ms=9", "--percentile=0.99"], 900.0, "write 99 for 99%"),
        (["--percentile=99"], 900.0, "--percentile: needs --response-time-ms"),
        (["--batching=best"], 900.0, "must be one of work-conserving, static:B, timeout:B:T"),
        (["--batching=static:0"], 900.0, "the batch size must be 1 to 32, not 0"),
        (
            ["--batching=static:8", "--response-time-ms=9"],
            900.0,
            "--batching: fixes the whole policy",
        ),
        (["--plot=/none/such/policy.png"], 900.0, "--plot /none/such/policy.png: No such file"),
        (["--plot=policy.xyz"], 900.0, "--plot policy.xyz: "),
    ],
)
def test_bad_options_are_one_line_and_status_2(capsys, more, rate, message):
    assert message in refusal(capsys, *more, rate=rate)


@pytest.mark.slow
def test_a_plot_near_the_capacity_of_a_device_whose_largest_batch_is_not_its_best(capsys, tmp_path):
    profile = tmp_path / "profile.json"
    profile.write_text('{"latency_ms": [1.0, 1.2, 4.0]}')
    solve(capsys, f"--plot={tmp_path / 'policy.png'}", rate=1500, profile=profile)
    assert (tmp_path / "policy.png").exists()


def test_sampled_percentiles_have_standard_errors(capsys, tmp_path):
    content = {**json.loads(PROFILE.read_text()), "latency_quantiles": {"10": 0.9, "90": 1.1}}
    varying = tmp_path / "profile.json"
    varying.write_text(json.dumps(content))
    found = solve(capsys, rate=1500, profile=varying)
    for percentile in ("50", "95", "99"):
        error_ms = found["response_percentile_errors_ms"][percentile]
        assert 0 < error_ms < 0.02 * found["response_percentiles_ms"][percentile]
    assert main(arguments(rate=1500, profile=varying)) == 0
    assert " ± " in capsys.readouterr().out


def test_an_sla_is_one_option_or_two(capsys):
    one = solve(capsys, "--sla", "10ms@99", rate=1200)
    two = solve(capsys, "--response-time-ms", "10", "--percentile", "99", rate=1200)
    assert one["meets_sla"]
    assert {**one, "solve_ms": 0} == {**two, "solve_ms": 0}


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "not JSON"), ('{"latency_ms": [2, 1]}', "must not decrease with the batch size")],
)
def test_a_bad_profile_is_one_line_and_status_2(capsys, tmp_path, content, message):
    path = tmp_path / "profile.json"
    path.write_text(content)
    assert message in refusal(capsys, rate=100.0, profile=path)
