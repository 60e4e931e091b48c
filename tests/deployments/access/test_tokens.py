"""Tokens are random, their hashes are SHA-256, and only a well-formed header holds one."""

import hashlib

import pytest

from deployments.access.tokens import bearer_token, hash_token, make_token


def test_tokens_are_random_and_fit_into_a_header():
    tokens = {make_token() for _ in range(100)}
    assert len(tokens) == 100
    for token in tokens:
        # 256 bits in base64 are 43 characters.
        assert len(token.removeprefix("sojourn_")) == 43
        assert bearer_token(f"Bearer {token}".encode()) == token.encode()


def test_the_hash_is_sha256():
    assert hash_token("abc") == "sha256:" + hashlib.sha256(b"abc").hexdigest()


@pytest.mark.parametrize("scheme", [b"Bearer ", b"bearer ", b"BEARER   "])
def test_the_scheme_has_no_case(scheme):
    assert bearer_token(scheme + b"a.b~c+/=") == b"a.b~c+/="


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"Bearer",
        b"Bearer ",
        b"abc",
        b"Basic YTpi",
        b"Bearer a b",
        b"Bearer a,b",
        b"Bearer \xff",
    ],
)
def test_anything_else_holds_no_token(value):
    assert bearer_token(value) is None
