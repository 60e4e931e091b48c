import pytest

from deployments.local.urls import check_url
from policy.errors import InvalidInputError


@pytest.mark.parametrize("url", ["http://h", "https://h:1/prefix", "http://[::1]:8000", "HTTP://h"])
def test_a_url_of_a_service(url):
    check_url("--url", url)


@pytest.mark.parametrize(
    "url",
    [
        *("", "h:8000", "ftp://h", "http://", "http://:80", "http://h:80a", "http://h:70000"),
        *("http://h:0", "http://[::1", "http://h/a b", "http://h\n"),
    ],
)
def test_what_is_no_url_of_a_service(url):
    with pytest.raises(InvalidInputError, match=r"^--url: must be like http://127.0.0.1:8000, not"):
        check_url("--url", url)
