import io
import urllib.request
from email.message import Message
from urllib.error import HTTPError

import pytest

from deployments.local.urls import ask, check_url
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


@pytest.mark.parametrize(
    ("path", "status", "reason", "said"),
    [
        ("/sojourn/policy", 401, None, "needs a token for operations: pass it with --token-file"),
        ("/v2/models", 403, None, "needs a token for inference"),
        ("/v2/models/a", 404, None, "has no /v2/models/a (there is no a); --url ends with"),
        ("/v2/models", 503, "no_replica", "no replica of the service at http://s answers"),
        ("/v2/models", 503, None, "the service at http://s is not ready: HTTP 503"),
    ],
)
def test_a_refusal_says_what_to_do(monkeypatch, path, status, reason, said):
    def refuse(request, timeout):
        headers = Message()
        headers["X-Sojourn-Reason"] = reason
        body = io.BytesIO(b'{"error": "there is no a"}')
        raise HTTPError(request.full_url, status, "", headers, body)

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    with pytest.raises(InvalidInputError) as caught:
        ask("http://s", path, None)
    assert said in str(caught.value)
