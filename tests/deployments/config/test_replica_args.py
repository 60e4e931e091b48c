import pytest

from deployments.config.replica_args import StoreConfig, parse_args
from deployments.modelstore.wire import default_socket
from policy.errors import InvalidInputError

MODEL = {"name": "m", "import_path": "digits"}


@pytest.mark.parametrize("weights", ["store://tf/net@2", "store://digits", "a/file", None])
def test_weights_are_a_model_of_the_store_or_a_file(weights):
    assert parse_args({"model": {**MODEL, "weights": weights}}).model.weights == weights


def test_a_wrong_name_of_weights_or_a_wrong_store_is_rejected():
    with pytest.raises(InvalidInputError, match=r"model\.weights: model name: '\.\.' must be"):
        parse_args({"model": {**MODEL, "weights": "store://../digits"}})
    with pytest.raises(InvalidInputError, match=r"store\.remote"):
        parse_args({"model": MODEL, "store": {"remote": "models/"}})


def test_the_models_of_a_deployment_have_names_of_their_own():
    with pytest.raises(InvalidInputError, match="two models have the name 'm'"):
        parse_args({"model": MODEL, "models": [MODEL]})


def test_each_remote_has_a_manager_of_its_own(monkeypatch):
    monkeypatch.delenv("SOJOURN_STORE", raising=False)
    one, same, other = (
        StoreConfig(remote=remote, host_bytes=host_bytes).settings()
        for remote, host_bytes in (("s3://a", 1), ("s3://a", 2), ("s3://b", 1))
    )
    assert (one.socket, one.disk) == (same.socket, same.disk)
    assert len({one.socket, other.socket}) == len({one.disk, other.disk}) == 2
    assert one.socket.parent == default_socket().parent
    # The path of a Unix socket is limited to 107 bytes.
    assert len(one.socket.name) < 30
