"""Bearer tokens: random, and stored as hashes.

A token has 256 random bits, so its SHA-256 can be stored: nobody can guess the token from it. A
slow, salted hash, as passwords need, would cost every request milliseconds for nothing.
"""

import hashlib
import re
import secrets

#: Lets scanners for leaked secrets recognize a token.
PREFIX = "sojourn_"
_RANDOM_BYTES = 32
HASH_PREFIX = "sha256:"
#: RFC 6750's ``b64token`` after the scheme, which is not case-sensitive.
_BEARER = re.compile(rb"bearer +([A-Za-z0-9._~+/-]+=*) *", re.IGNORECASE)


def make_token() -> str:
    return PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)


def hash_token(token: str) -> str:
    """Return the hash of a token in the config's form: ``sha256:`` and 64 hexadecimal digits."""
    return HASH_PREFIX + digest_of(token.encode()).hex()


def digest_of(token: bytes) -> bytes:
    """Return the SHA-256 of a token, 32 bytes."""
    return hashlib.sha256(token).digest()


def bearer_token(authorization: bytes) -> bytes | None:
    """Return the token in an Authorization header's value, or None."""
    found = _BEARER.fullmatch(authorization)
    return None if found is None else found[1]
