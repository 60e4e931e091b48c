import pytest

from deployments.config.declared import declared_models
from deployments.config.replica_args import ModelConfig
from deployments.config.user_config import parse_user_config
from policy.errors import InvalidInputError
from tests.support.models.hosted_models import config_of

NO_STORE = ModelConfig(name="a", import_path="unused:Unused")


def declared(config, **named):
    model = declared_models([config], parse_user_config({"models": {"a": named}}))["a"]
    return model.version, model.weights


def test_what_the_config_leaves_out_stays_as_args_have_it():
    assert declared_models([NO_STORE], parse_user_config({})) == {"a": NO_STORE}
    assert declared(config_of("a"), version="2") == ("2", "store://pytorch/a@2")
    assert declared(config_of("a"), weights="store://other@3") == ("3", "store://other@3")
    assert declared(NO_STORE, version="2", weights="/a2.bin") == ("2", "/a2.bin")


@pytest.mark.parametrize(
    ("config", "named", "message"),
    [
        (NO_STORE, {"version": "2"}, "models.a: version: .* not in a model store"),
        (NO_STORE, {"weights": "/a2.bin"}, "models.a: weights: '/a2.bin' is a file, so it needs a"),
        (config_of("a"), {"weights": "store://bad name@@2"}, "models.a: model name: "),
        (config_of("a"), {"weights": "store://a@@2", "version": "2"}, "models.a: weights: "),
    ],
)
def test_a_version_that_cannot_be_meant(config, named, message):
    with pytest.raises(InvalidInputError, match=message):
        declared(config, **named)
