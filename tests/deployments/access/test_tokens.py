import hashlib

import pytest

from deployments.access.tokens import bearer_token, hash_token, make_token


def test_tokens_are_random_and_fit_into_a_header():
    token = make_token()
    assert token != make_token()
    assert len(token.removeprefix("sojourn_")) == 43  # 256 bits in base64
    assert bearer_token(f"Bearer {token}".encode()) == token.encode()


def test_the_hash_is_sha256():
    assert hash_token("abc") == "sha256:" + hashlib.sha256(b"abc").hexdigest()


@pytest.mark.parametrize("scheme", [b"Bearer ", b"bearer ", b"BEARER   "])
def test_the_scheme_has_no_case(scheme):
    assert bearer_token(scheme + b"a.b~c+/=") == b"a.b~c+/="


WRONG = [b"", b"Bearer", b"Bearer ", b"Basic YTpi", b"Bearer a b", b"Bearer a,b", b"Bearer \xff"]


@pytest.mark.parametrize("value", WRONG)
def test_anything_else_holds_no_token(value):
    assert bearer_token(value) is None
