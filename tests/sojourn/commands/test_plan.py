import contextlib
import io
import json
from pathlib import Path

import pytest
import yaml

from autoscaler.sizing.rand import busy_probability, response_time_cdf
from policy.profile import Profile
from policy.try_delays import TryDelays
from sojourn.cli import main

PROFILE = Path(__file__).parents[3] / "configs" / "profiles" / "googlenet-p4.json"
DELAYS = ["--request-delay-ms", "1", "--reply-delay-ms", "1", "--retry-delay-ms", "2"]


def arguments(rate=20_000, response_time_ms=15, percentile=99, profile=PROFILE):
    return [
        "plan",
        f"--profile={profile}",
        f"--arrival-rate={rate}",
        f"--response-time-ms={response_time_ms}",
        f"--percentile={percentile}",
    ]


@pytest.fixture
def plan(as_json):
    return lambda *more, **values: as_json(*arguments(**values), *more)


@pytest.fixture(scope="module")
def default_plan():
    """The plan of the arguments alone, which takes seconds."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main([*arguments(), "--json"]) == 0
    return json.loads(printed.getvalue())


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["batch", "rand"])
def test_one_replica_less_misses_the_sla(plan, default_plan, estimator):
    content = default_plan if estimator == "batch" else plan("--estimator", estimator)
    n, (fewer, chosen, more) = content["replicas"], content["alternatives"]
    assert [row["replicas"] for row in (fewer, chosen, more)] == [n - 1, n, n + 1]
    assert [row["meets_sla"] for row in (fewer, chosen, more)] == [False, True, True]
    assert chosen.items() <= content.items()
    assert content["predicted_service_level"] >= 0.99
    assert content["predicted_percentile_ms"] <= 15
    bound = content["theorem_error_bound"]
    assert bound is None if estimator == "batch" else 0.01 < bound < 0.2


@pytest.mark.slow
def test_more_replicas_with_fewer_requests_in_time_are_explained(capsys):
    assert main(arguments(response_time_ms=10)) == 0
    said = capsys.readouterr().out
    assert "With more replicas, answers take longer here" in said
    assert "because that saves energy." in said
    assert main([*arguments(), "--estimator", "rand"]) == 0
    assert "With more replicas" not in capsys.readouterr().out


@pytest.mark.slow
def test_the_rand_estimator_is_theorem_2(plan):
    content = plan("--estimator", "rand", *DELAYS, "--retries", "3", response_time_ms=30)
    profile = Profile.load(PROFILE)
    full_ms = float(profile.latency_ms[-1])
    for row in content["alternatives"]:
        busy = busy_probability(20_000, row["replicas"], 32e3 / full_ms)
        expected = response_time_cdf(30, busy, full_ms, TryDelays(1, 1, 2, 3))
        assert row["predicted_service_level"] == pytest.approx(float(expected))


@pytest.mark.slow
def test_too_few_replicas_answer_what_they_can(plan):
    content = plan(rate=5000, response_time_ms=100)
    assert content["replicas"] == 2
    fewer = content["alternatives"][0]
    assert not fewer["meets_sla"]
    assert fewer["predicted_percentile_ms"] is None
    # A P4 computes 2,959 requests/s in full batches.
    assert fewer["predicted_service_level"] == pytest.approx(2959 / 5000, rel=0.01)


@pytest.mark.slow
def test_with_prices_the_lowest_cost_is_chosen(plan, default_plan):
    """Free replicas: as many as still save energy. Expensive ones: as few as possible."""
    dear = plan("--energy-price", "0.3", "--replica-price", "10")
    free = plan("--energy-price", "0.3", rate=800, response_time_ms=15)
    assert dear["replicas"] == default_plan["replicas"]
    assert dear["cost_per_h"] == pytest.approx(
        10 * dear["replicas"] + 0.3e-3 * dear["mean_power_w"]
    )
    assert free["cost_per_h"] == pytest.approx(0.3e-3 * free["mean_power_w"])
    costs = [row["cost_per_h"] for row in free["alternatives"] if row["meets_sla"]]
    assert free["cost_per_h"] == min(costs)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--sla", "15ms@99"], "--sla: omit it, or --response-time-ms and --percentile"),
        (["--response-time-ms", "1"], "within 1 ms is out"),
        (["--estimator", "rand", "--response-time-ms", "1.7"], "allow 11.07 ms or more"),
        (["--estimator", "rand", "--max-replicas", "5"], "allow more replicas"),
        (["--power-limit-w", "900", "--energy-price", "1"], "--power-limit-w: omit --energy"),
        (["--replica-price", "2"], "--replica-price: needs --energy-price"),
    ],
)
def test_a_user_error(refused, more, message):
    assert message in refused(*arguments(), *more)


def with_event_loop(tmp_path, **event_loop):
    file = tmp_path / "with_event_loop.json"
    costs = {"batch_ms": 0.2, **event_loop}
    content = {**json.loads(PROFILE.read_text()), "event_loop": costs, "cpus": 2}
    file.write_text(json.dumps(content))
    return file


@pytest.mark.slow
def test_an_event_loop_on_the_same_cpu_needs_more_replicas(plan, tmp_path):
    without = plan(rate=5000)
    assert without["bottleneck"] is None
    file = with_event_loop(tmp_path, request_ms=0.8, shares_cpu=True)
    serial = plan(profile=file, rate=5000)
    assert serial["bottleneck"] == "event_loop"
    assert serial["replicas"] > without["replicas"]


@pytest.mark.slow
def test_a_config_has_the_profile_the_sla_and_the_limits(as_json, refused, tmp_path):
    config = str(PROFILE.parents[1] / "emulated-p4.yaml")
    load = ("--arrival-rate", "60")
    own = as_json("plan", "--config", config, *load)
    assert own == as_json("plan", "--config", config, *load, "--sla", "500ms@99")
    assert (
        own["replicas"]
        < as_json("plan", "--config", config, *load, "--sla", "100ms@99")["replicas"]
    )
    limited = tmp_path / "limited.yaml"
    document = yaml.safe_load(Path(config).read_text())
    user_config = document["applications"][0]["deployments"][0]["user_config"]
    user_config["limits"] = {"expert": {"batch_size_limit": 4}}
    limited.write_text(yaml.safe_dump(document))
    assert max(own["actions"]) > 4
    assert max(as_json("plan", "--config", str(limited), *load)["actions"]) == 4
    user_config["power_limit_w"] = 900
    limited.write_text(yaml.safe_dump(document))
    power = refused("plan", "--config", limited, *load, "--energy-price", "1")
    assert "--power-limit-w: omit --energy-price" in power
    assert "and not by both" in refused("plan", *load, "--sla", "50ms@95")
    assert "and not by both" in refused("plan", *load, "--config", config, "--profile", PROFILE)
    digits = str(PROFILE.parents[1] / "digits.yaml")
    assert "'digits' has no profile; measure it" in refused("plan", *load, "--config", digits)
