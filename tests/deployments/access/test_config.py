import pytest

from deployments.access.tokens import hash_token
from deployments.config.user_config import AccessConfig, parse_user_config
from policy.errors import InvalidInputError


def token(name="alice", secret="a", **more):
    return {"name": name, "hash": hash_token(secret), **more}


@pytest.mark.parametrize(
    ("content", "inference", "operations"),
    [
        ({}, False, False),
        ({"tokens": []}, True, True),
        ({"tokens": [token()]}, True, True),
        ({"tokens": [token()], "anonymous": ["inference"]}, False, True),
        ({"tokens": [], "anonymous": ["operations"]}, True, False),
    ],
)
def test_what_needs_a_token(content, inference, operations):
    config = AccessConfig.model_validate(content)
    assert (config.closed("inference"), config.closed("operations")) == (inference, operations)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"tokens": [token(), token(secret="b")]}, "two tokens have the name 'alice'"),
        ({"tokens": [token(), token("bob")]}, "two tokens have the hash 'sha256:"),
        ({"tokens": [{"name": "alice", "hash": "secret"}]}, "hash"),
        ({"tokens": [token(scopes=["everything"])]}, "scopes"),
        ({"tokens": [token(burst=2)]}, "burst needs requests_per_s"),
        ({"anonymous": ["inference"]}, "without tokens everything is open"),
    ],
)
def test_mistakes_are_named(content, message):
    with pytest.raises(InvalidInputError, match=message):
        parse_user_config({"access": content})
