import pytest
import yaml

from deployments.errors import StartError
from deployments.haproxy.command import HELD_MS
from policy.errors import InfeasibleError, InvalidInputError
from sojourn.served import load_served_file
from tests.support.readme import ROOT

CONFIGS = ROOT / "configs"


@pytest.mark.slow
def test_two_models():
    run = load_served_file(CONFIGS / "two-models.yaml", check=False)
    first, second = run.applications
    assert (first.application, first.model, first.route_prefix) == ("digits", "digits", "/digits")
    assert second.route_prefix == "/googlenet"
    slas = [served.sla for served in run.applications]
    assert slas == ["99% of requests within 100 ms", "99% of requests within 500 ms"]
    assert run.environment["RAY_SERVE_HAPROXY_TUNE_BUFSIZE"] == "65536"


@pytest.mark.slow
def test_a_pipeline_beside_a_model(tmp_path):
    pipeline, model = (
        yaml.safe_load((CONFIGS / name).read_text())
        for name in ("digits-pipeline.yaml", "digits.yaml")
    )
    model["applications"][0]["route_prefix"] = "/model"
    both = {**model, "applications": [*pipeline["applications"], *model["applications"]]}
    path = tmp_path / "both.yaml"
    path.write_text(yaml.safe_dump(both))
    run = load_served_file(path, check=False)
    assert [served.model for served in run.applications] == ["digits", "digits-pipeline"]
    assert [served.is_pipeline for served in run.applications] == [False, True]
    assert len(run.document["applications"]) == 2
    assert run.environment[HELD_MS] == "http-digits=50,http-digits-pipeline=50"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("applications: 7", "applications: is required"),
        ("applications: [7]", "applications.0: must be a mapping"),
        (
            "applications: [{import_path: 'deployments.pipelines.serving.application:build'}]",
            "deployments: ",
        ),
        ("", "applications: is required"),
        ("applications: [{import_path: [a]}]", "import_path: input should be a valid string"),
    ],
)
def test_files_that_are_wrong(tmp_path, content, message):
    path = tmp_path / "wrong.yaml"
    path.write_text(content)
    with pytest.raises(InvalidInputError, match=message) as caught:
        load_served_file(path, check=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "place"),
    [
        (StartError("it fails"), "15: applications.0.args.model: it fails"),
        (InfeasibleError("too short"), "37: applications.0.deployments.0.user_config.sla: too sho"),
    ],
)
def test_what_is_wrong_with_a_model_is_said_with_file_line_and_key(monkeypatch, error, place):
    def check(service, load):
        raise error

    monkeypatch.setattr("sojourn.served.check_service", check)
    path = CONFIGS / "digits.yaml"
    with pytest.raises(InvalidInputError, match=f"^{path}:{place}"):
        load_served_file(path)
    with pytest.raises(type(error), match=f"^{error}$"):
        load_served_file(path, own=False)
