import pytest

from deployments.access.exposure import check_exposure
from deployments.access.web_pages import is_loopback
from deployments.config.user_config import AccessConfig
from policy.errors import InvalidInputError

CLOSED = AccessConfig.model_validate({"tokens": []})
OPEN = AccessConfig()
OPEN_INFERENCE = AccessConfig.model_validate({"tokens": [], "anonymous": ["inference"]})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "[::1]", "localhost", "LocalHost"])
def test_loopback_needs_no_tokens(host):
    assert is_loopback(host)
    check_exposure(host, OPEN, insecure=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "127.0.0.1.example.org", ""])
def test_a_public_address_needs_tokens(host):
    assert not is_loopback(host)
    check_exposure(host, CLOSED, insecure=False)
    check_exposure(host, OPEN, insecure=True)
    for access in (OPEN, OPEN_INFERENCE):
        with pytest.raises(InvalidInputError, match=r"sojourn token NAME.*--insecure"):
            check_exposure(host, access, insecure=False)
