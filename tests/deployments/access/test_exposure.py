"""A service that others can reach needs tokens, unless its owner insists."""

import pytest

from deployments.access.exposure import check_exposure
from deployments.access.web_pages import is_loopback
from deployments.config.user_config import AccessConfig
from policy.errors import InvalidInputError

CLOSED = AccessConfig.model_validate({"tokens": []})
LOOPBACK = ["127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost", "LocalHost"]
PUBLIC = ["0.0.0.0", "::", "192.168.1.5", "example.org", "127.0.0.1.example.org", ""]


@pytest.mark.parametrize("host", LOOPBACK)
def test_loopback_needs_no_tokens(host):
    assert is_loopback(host)
    check_exposure(host, AccessConfig(), insecure=False)


@pytest.mark.parametrize("host", PUBLIC)
def test_a_public_address_needs_tokens(host):
    assert not is_loopback(host)
    check_exposure(host, CLOSED, insecure=False)
    check_exposure(host, AccessConfig(), insecure=True)
    open_inference = CLOSED.model_copy(update={"anonymous": ("inference",)})
    for access in (AccessConfig(), open_inference):
        with pytest.raises(InvalidInputError, match=r"sojourn token NAME.*--insecure"):
            check_exposure(host, access, insecure=False)
