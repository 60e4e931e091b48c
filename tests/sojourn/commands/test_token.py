import json
import stat
from pathlib import Path

import pytest
import yaml

from deployments.access.control import AccessControl
from deployments.config.user_config import parse_user_config
from policy.errors import SojournError
from sojourn.cli import main


def test_the_printed_lines_admit_the_printed_token(capsys):
    options = ("--scope", "inference", "--scope", "operations", "--requests-per-s", "5")
    assert main(["token", "alice", *options, "--burst", "9"]) == 0
    out = capsys.readouterr().out
    secret = out.split()[0]
    lines = out[out.index("access:") : out.index("A client")]
    config = parse_user_config(yaml.safe_load(lines))
    (token,) = config.access.tokens
    assert (token.name, token.requests_per_s, token.burst) == ("alice", 5, 9)
    control = AccessControl(config.access)
    for scope in ("inference", "operations"):
        assert control.admit(f"Bearer {secret}".encode(), scope, 0) == "alice"
    assert secret not in lines


def test_a_file_holds_the_token_for_its_owner_alone(as_json, refused, tmp_path):
    file: Path = tmp_path / "alice.token"
    shown = as_json("token", "alice", "--file", file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    secret = file.read_text().strip()
    assert secret not in json.dumps(shown)
    control = AccessControl(parse_user_config({"access": {"tokens": [shown["config"]]}}).access)
    assert control.allows(f"Bearer {secret}".encode(), "inference")
    with pytest.raises(SojournError):
        control.admit(f"Bearer {secret}".encode(), "operations", 0)
    assert "File exists" in refused("token", "bob", "--file", file)
    assert file.read_text().strip() == secret


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["a b"], "name"),
        (["alice", "--requests-per-s", "0"], "requests_per_s"),
        (["alice", "--burst", "3"], "burst needs requests_per_s"),
    ],
)
def test_mistakes(refused, arguments, complaint):
    assert complaint in refused("token", *arguments)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["serve --check configs/{}.yaml", "pipeline serve configs/{}-pipeline.yaml"]
)
def test_a_public_address_needs_tokens(refused, command):
    line = refused(*command.format("digits").split(), "--host", "0.0.0.0")
    assert "anyone who reaches 0.0.0.0" in line
    assert "--insecure" in line
