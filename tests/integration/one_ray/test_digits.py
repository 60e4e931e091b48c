"""The digits model on real Ray Serve behind real HAProxy, as in the README."""

import json
import os
import signal
import subprocess

import httpx
import numpy as np
import pytest
import tritonclient.http as triton

from deployments.access.tokens import hash_token
from loadtests.digits import held_out
from sojourn.cli import main
from tests.support.processes.services import BIN, Running, get, load_document, post
from tests.support.readme import commands as readme_commands
from tests.support.waiting import wait_for

pytestmark = pytest.mark.integration


def document(**user_config):
    """Return the config of the digits with changes; with one replica, whatever the load.

    How fast this machine is, is not the question here: what is late is served.
    """
    content = load_document("digits.yaml")
    (deployment,) = content["applications"][0]["deployments"]
    deployment["autoscaling_config"]["max_replicas"] = 1
    deployment["user_config"] |= {"limits": {"late": "serve"}, **user_config}
    return content


@pytest.fixture(scope="module")
def service(one_ray: Running):
    return one_ray.serve_instead(document())


def test_the_load_test_of_the_readme_finds_every_answer_right(service: Running):
    (command,) = (words for words in readme_commands() if "loadtest" in words)
    # Later options override the same ones before: a short time shows as much.
    output = subprocess.run(
        [BIN / "sojourn", *command[1:], "--duration-s", "3", "--url", service.url, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    ).stdout
    report = json.loads(output)
    assert report["requests"] == report["ok"] > 400
    assert (report["wrong_answers"], report["lost"], report["failed"]) == (0, 0, {})


def test_tritonclient_gets_the_right_digits(service: Running):
    images, labels = held_out()
    client = triton.InferenceServerClient(service.url.removeprefix("http://"))
    try:
        assert client.is_server_live()
        assert client.is_model_ready("digits")
        assert client.get_model_metadata("digits")["inputs"][0]["shape"] == [-1, 8, 8]
        found = []
        for start in range(0, len(images), 60):
            part = images[start : start + 60]
            image = triton.InferInput("image", list(part.shape), "FP32")
            image.set_data_from_numpy(part)
            label = triton.InferRequestedOutput("label")
            result = client.infer("digits", [image], outputs=[label])
            found.append(result.as_numpy("label"))
    finally:
        client.close()
    assert np.mean(np.concatenate(found) == labels) >= 0.97


def test_errors_keep_their_form_behind_haproxy_which_only_this_machine_reaches(service: Running):
    assert service.listens_beyond_this_machine() == set()
    wrong = post(f"{service.url}/v2/models/digits/infer", json={"inputs": []})
    message = "input 'image' is missing: the model's inputs are 'image'"
    assert (wrong.status_code, wrong.json()) == (400, {"error": message})
    assert get(f"{service.url}/v2/models/other").status_code == 404


def test_a_changed_sla_acts_without_restarting_a_replica(service: Running, capfd):
    before = set(service.replicas())
    assert main(["deploy", "-a", service.summary["dashboard"], "--sla", "40ms@95"]) == 0
    said = capfd.readouterr().out
    assert said.startswith("digits: 95% of requests within 40 ms in force, control limit "), said
    assert policy(service)["sla_in_words"] == "95% of requests within 40 ms"
    # An invalid SLA is rejected, and the service keeps running.
    service.redeploy(document(sla={"response_time_ms": -1}))
    assert wait_for(lambda: policy(service)["config_error"] is not None)
    assert "sla.response_time_ms" in policy(service)["config_error"]
    assert policy(service)["sla_in_words"] == "95% of requests within 40 ms"
    # Correct it, so that a replica that starts later gets a valid config.
    service.redeploy(document())
    assert wait_for(lambda: policy(service)["config_error"] is None)
    assert policy(service)["sla_in_words"] == "99% of requests within 100 ms"
    assert set(service.replicas()) == before


def policy(service: Running):
    return get(f"{service.url}/sojourn/policy").json()


def test_tokens_take_effect_without_restarting_a_replica(service: Running):
    before = set(service.replicas())
    infer, example = f"{service.url}/v2/models/digits/infer", example_of(service)
    access = {"tokens": [{"name": "user", "hash": hash_token("u")}]}
    # One connection for all: a token counts on connections that were opened without one, too.
    with httpx.Client() as client:

        def infer_as(secret):
            headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
            return client.post(infer, json=example, headers=headers)

        assert infer_as(None).status_code == 200
        service.redeploy(document(access=access))
        assert wait_for(lambda: infer_as(None).status_code == 401)
        denied = infer_as("unknown")
        assert denied.status_code == 401
        assert denied.headers["www-authenticate"] == 'Bearer realm="sojourn", error="invalid_token"'
        right = infer_as("u")
        assert (right.status_code, right.json()["outputs"][0]["data"]) == (200, [3])
        for probe in ("live", "ready"):
            assert client.get(f"{service.url}/v2/health/{probe}").status_code == 200
        # Not on the short way, and not through the fast path of the replica.
        assert client.get(f"{service.url}/sojourn/policy").status_code == 401
        assert client.get(f"{service.url}/elsewhere").status_code == 401
        service.redeploy(document())
        assert wait_for(lambda: infer_as(None).status_code == 200)
    assert set(service.replicas()) == before


def example_of(service: Running):
    return get(f"{service.url}/sojourn/example").json()


def test_a_killed_replica_is_replaced(service: Running):
    # Even while the user_config is wrong: the new replica takes the last good one.
    service.redeploy(document(sla={"response_time_ms": 100, "percentile": 100}))
    assert wait_for(lambda: policy(service)["config_error"] is not None)
    example = example_of(service)
    (victim,) = service.replicas()
    os.kill(victim, signal.SIGKILL)
    infer = f"{service.url}/v2/models/digits/infer"

    def answers():
        answer = post(infer, json=example)
        return answer.status_code == 200 and answer.json()["outputs"][0]["data"] == [3]

    assert wait_for(answers)
    assert victim not in service.replicas()
    assert policy(service)["config_error"].endswith("; the last good user_config is in force")
    assert policy(service)["sla_in_words"] == "99% of requests within 100 ms"
    service.redeploy(document())
    assert wait_for(lambda: policy(service)["config_error"] is None)
