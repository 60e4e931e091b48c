import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.access.control import AccessControl, scope_of
from deployments.access.tokens import hash_token
from deployments.config.user_config import AccessConfig
from deployments.errors import ForbiddenError, RateLimitedError, UnauthorizedError


def config(*tokens, **more):
    return AccessConfig.model_validate({"tokens": [*tokens], **more})


def token(name, **more):
    """Return a token whose secret is its name."""
    return {"name": name, "hash": hash_token(name), **more}


def bearer(secret):
    return f"Bearer {secret}".encode()


@pytest.mark.parametrize(
    ("path", "scope"),
    [
        ("/v2/health/live", None),
        ("/v2/health/ready", None),
        ("/v2/health/other", "inference"),
        ("/v2", "inference"),
        ("/v2/models/m/infer", "inference"),
        ("/sojourn/policy", "operations"),
        ("/sojourn/static", "operations"),
        ("/sojourn/static/main.js", None),
        ("/sojourn", None),
        ("/sojournal", "inference"),
        ("/metrics", "operations"),
        ("", "inference"),
    ],
)
def test_each_path_has_its_scope(path, scope):
    assert scope_of(path) == scope


def test_a_token_opens_its_scopes_only():
    scopes = ["inference", "operations"]
    both, ops = token("both", scopes=scopes), token("ops", scopes=scopes[1:])
    control = AccessControl(config(token("alice"), ops, both))
    assert control.admit(bearer("alice"), "inference", 0) == "alice"
    assert control.admit(bearer("ops"), "operations", 0) == "ops"
    for scope in scopes:
        assert control.admit(bearer("both"), scope, 0) == "both"
    for secret, scope in (("alice", "operations"), ("ops", "inference")):
        assert not control.allows(bearer(secret), scope)
        with pytest.raises(ForbiddenError, match=f"{secret!r} does not have the scope {scope}"):
            control.admit(bearer(secret), scope, 0)
    assert control.admit(None, None, 0) is None
    assert control.admitted == {"alice": 1, "ops": 1, "both": 2}
    assert control.denied == {403: 2}


@given(st.binary(max_size=40))
def test_no_other_bytes_are_a_token(secret):
    control = AccessControl(config(token("alice")))
    if secret.rstrip(b" ") != b"alice":
        assert not control.allows(b"Bearer " + secret, "inference")


def test_a_denied_request_uses_nothing_of_the_rate_and_retry_after_says_when():
    control = AccessControl(config(token("a", requests_per_s=0.1)))
    for _ in range(5):
        with pytest.raises(ForbiddenError):
            control.admit(bearer("a"), "operations", 0)
        assert control.allows(bearer("a"), "inference")
    assert control.admit(bearer("a"), "inference", 0) == "a"
    with pytest.raises(RateLimitedError, match=r"limited to 0\.1 requests per second") as caught:
        control.admit(bearer("a"), "inference", 3.5)
    assert caught.value.retry_after_s == 7
    control.admit(bearer("a"), "inference", 10)


def test_replicas_share_a_rate():
    replicas = 5
    controls = [AccessControl(config(token("a", requests_per_s=10))) for _ in range(replicas)]
    taken = 0
    for control in controls:
        control.share_among(replicas, 0.0)
        for tick in range(2_000):  # 20 s
            try:
                control.admit(bearer("a"), "inference", 0.01 * tick)
            except RateLimitedError:
                continue
            taken += 1
    assert taken == pytest.approx(10 + 10 * 20, abs=replicas)


def test_a_change_revokes_at_once_and_keeps_what_was_used():
    limited = token("a", requests_per_s=1)
    control = AccessControl(config(limited, token("b")))
    control.admit(bearer("a"), "inference", 0)
    control.configure(config(limited))
    with pytest.raises(UnauthorizedError):
        control.admit(bearer("b"), "inference", 0)
    with pytest.raises(RateLimitedError):
        control.admit(bearer("a"), "inference", 0)
    control.configure(config(token("a", requests_per_s=5)))
    control.admit(bearer("a"), "inference", 0)
    control.configure(config())
    with pytest.raises(UnauthorizedError):
        control.admit(bearer("a"), "inference", 9)
    control.configure(AccessConfig())
    assert control.admit(None, "inference", 9) is None
