import json
import re
from pathlib import Path

import numpy as np
import pytest

from autoscaler.simulator.autoscalers.registry import AUTOSCALERS
from policy.profile import Profile

CONFIGS = Path(__file__).parents[3] / "configs"
PROFILE = CONFIGS / "profiles" / "googlenet-p4.json"


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """A trace of five minutes whose load triples after two."""
    path = tmp_path_factory.mktemp("traces") / "step.csv"
    counts = np.where(np.arange(300) < 120, 20, 60)
    rows = "\n".join(f"{second},{count}" for second, count in enumerate(counts))
    path.write_text(f"second,requests\n{rows}\n")
    return path


@pytest.fixture(scope="module")
def slow_profile(tmp_path_factory):
    """A batch takes 50 ms plus 0.5 ms per request: at most 485 requests/s."""
    path = tmp_path_factory.mktemp("profiles") / "slow.json"
    line = {"max_batch_size": 32, "latency_ms": {"per_request": 0.5, "fixed": 50}}
    path.write_text(json.dumps({"model": "m", "device": "d", **line}))
    return path


def on_trace(trace, *more, profile=PROFILE):
    return [
        "simulate",
        f"--profile={profile}",
        f"--trace={trace}",
        "--response-time-ms=200",
        "--start-time-s=20",
        "--batching=work-conserving",
        *more,
    ]


FIXED = [
    *("simulate", f"--profile={PROFILE}", "--response-time-ms=50", "--batching=work-conserving"),
    *("--arrival-rate=2000", "--replicas=2", "--requests=200000"),
]


@pytest.mark.slow
def test_the_result_has_the_same_keys_for_every_autoscaler(as_json, trace, slow_profile):
    names = ",".join(AUTOSCALERS)
    arguments = on_trace(trace, f"--autoscaler={names}", "--scale=20", profile=slow_profile)
    content = as_json(*arguments)
    assert list(content["autoscalers"]) == list(AUTOSCALERS)
    requests = 20 * (120 * 20 + 180 * 60)
    assert content["requests"] == requests
    for row in content["autoscalers"].values():
        assert 0 <= row["service_level"] <= 1
        assert 0 <= row["refused"] <= requests * (1 - row["service_level"]) + 0.5
        assert list(row["response_percentiles_ms"]) == ["50", "90", "95", "99", "99.9"]
        assert row["energy_j"] is None  # this profile has none
    oracle = content["autoscalers"]["oracle"]
    assert oracle["over_oracle"] == 1
    assert oracle["keeps_sla"]
    for row in content["autoscalers"].values():
        ratio = row["replica_seconds"] / oracle["replica_seconds"]
        assert row["over_oracle"] == pytest.approx(ratio)


def test_a_fixed_fleet_agrees_with_the_prediction(as_json):
    content = as_json(*FIXED)
    row = content["autoscalers"]["fixed"]
    assert (content["least_replicas"], row["over_oracle"]) == (1, 2)
    predicted = content["predicted"]
    assert row["service_level"] == pytest.approx(predicted["service_level"], abs=1e-3)
    assert row["energy_j"] / content["seconds"] == pytest.approx(
        predicted["mean_power_w"], rel=0.02
    )
    for name, value in row["response_percentiles_ms"].items():
        assert value == pytest.approx(predicted["response_percentiles_ms"][name], rel=0.03)


@pytest.mark.slow
def test_under_a_ceiling_a_fixed_fleet_and_a_trace_take_no_more_power(as_json, trace, tmp_path):
    profile = tmp_path / "small.json"
    profile.write_text(json.dumps(Profile.load(PROFILE).up_to(6).to_dict()))
    own = ("simulate", f"--profile={profile}", "--sla=8ms@99", "--power-limit-w=70")
    fixed = as_json(*own, "--arrival-rate=3000", "--replicas=5", "--requests=100000")
    on_the_trace = as_json(*own, f"--trace={trace}", "--scale=50", "--start-time-s=2")
    for row in (*fixed["autoscalers"].values(), on_the_trace["autoscalers"]["sojourn"]):
        assert row["most_power_w"] <= 71
    row, predicted = fixed["autoscalers"]["fixed"], fixed["predicted"]
    assert row["replica_seconds"] < 5 * fixed["seconds"]
    assert row["service_level"] == pytest.approx(predicted["service_level"], abs=0.01)
    least = fixed["least_replicas"]
    assert row["over_oracle"] == row["replica_seconds"] / fixed["seconds"] / least


@pytest.mark.slow
def test_report(as_json, trace, tmp_path):
    path = tmp_path / "out.html"
    arguments = on_trace(trace, "--scale=30", f"--report={path}")
    content = as_json(*arguments)
    text = path.read_text(encoding="utf-8")
    assert "of the requests in time; the SLA was " in text
    (typed,) = re.findall(r"<pre>(.*?)</pre>", text)
    assert typed.startswith(".venv/bin/sojourn simulate --profile ")
    assert as_json(*typed.split()[1:]) == content


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--autoscaler horse", "must be one of sojourn, ray"),
        ("--batching fifo", "must be one of sla"),
        ("--power-limit-w 100", "power limit: decides how replicas batch; omit batching"),
        ("--scale 1e6", "arrivals: at most 10,000,000 requests per second can be simulated"),
        ("--replicas 3", "--replicas: applies to a fixed fleet"),
        (f"--trace {PROFILE}", "second,requests"),
        (f"--profile {CONFIGS}/digits.yaml", "digits.yaml"),
        ("--response-time-ms 1", "a nearly idle replica answers 0% in time, and 99% within"),
        ("--response-time-ms 1.8", "within 1.8 ms is out"),
        ("--report no-such-folder/out.html", "no folder no-such-folder"),
        (f"--history {PROFILE}", "the first line must be second,requests"),
    ],
)
def test_a_user_error(refused, trace, more, message):
    assert message in refused(*on_trace(trace), *more.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--arrival-rate=5", "give --trace FILE, or --arrival"),
        ("--arrival-rate=5 --replicas=1 --scale=2", "--scale: needs --trace"),
        ("--arrival-rate=1e-9 --replicas=1", "longer than a year"),
        ("--arrival-rate=1e9 --replicas=1 --requests=100", "can be simulated, not 1e+09"),
    ],
)
def test_exactly_one_load_must_be_given(refused, more, message):
    arguments = ("simulate", f"--profile={PROFILE}", "--response-time-ms=50")
    assert message in refused(*arguments, *more.split())


@pytest.mark.slow
def test_a_history_is_told_to_sojourn_alone(as_json, trace, tmp_path):
    """A trace that says `second` begins at 0, as the history does, so that ends where it begins."""
    history = tmp_path / "before.csv"
    rows = "".join(f"{m},{6000 if m % 5 == 2 else 1200}\n" for m in range(240))
    history.write_text(f"minute,requests\n{rows}")
    options = ("--autoscaler=sojourn,hpa", "--scale=50")
    without = as_json(*on_trace(trace, *options))
    told = as_json(*on_trace(trace, *options, f"--history={history}"))
    assert told["requests"] == without["requests"]
    assert told["autoscalers"]["hpa"] == without["autoscalers"]["hpa"]
    assert told["autoscalers"]["sojourn"] != without["autoscalers"]["sojourn"]
